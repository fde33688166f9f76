//! Inventories of hosts: this one is inspected, others are asked over ssh, or recordings are read.
//!
//! All hosts are asked at the same time, within one time limit. A host that gives no inventory has a reason
//! in one line.
//!
//! | module | purpose |
//! |---|---|
//! | `cables` | the cables between surveyed hosts |
//! | `gather` | texts of this machine |
//! | `hosts` | inventories of several hosts |
//! | `probe` | RDMA devices of this machine |

mod cables;
mod gather;
mod hosts;
mod probe;

pub(super) use cables::Cables;
pub(super) use hosts::{Reach, Survey, SurveyArgs, Surveyed};

use inventory::{Inventory, Recording};

/// Line before the JSON of an inventory, which tells it from the output of login shells.
const MARKER: &str = "#!tbccl-inventory";

/// Arguments that make tbccl print its machine's inventory.
const ARGUMENTS: &str = "doctor --inventory";

/// Returns the texts of this machine.
pub(super) fn record() -> Recording {
    gather::record()
}

/// Returns the inventory of this machine with its interfaces, and no more than comes with them.
pub(super) fn interfaces() -> Inventory {
    Inventory::read(&gather::record_interfaces())
}

/// Returns the inventory of this machine in the form that other hosts ask for.
pub(super) fn answer() -> String {
    format!("{MARKER}\n{}\n", Inventory::read(&record()).to_json())
}

/// Returns the inventory in the output of a host.
fn parse_answer(output: &str) -> Result<Inventory, String> {
    let (_, json) = output
        .rsplit_once(MARKER)
        .ok_or("the program that answers is not this tbccl; install the same on both hosts")?;
    Inventory::from_json(json.trim()).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_found_behind_the_greeting_of_a_shell() {
        let inventory =
            Inventory { version: inventory::VERSION, hostname: "a".into(), ..Inventory::default() };
        let output = format!("Welcome!\n{MARKER}\n{}\n", inventory.to_json());
        assert_eq!(parse_answer(&output), Ok(inventory));
        assert!(parse_answer("Welcome!\n").is_err_and(|why| why.contains("install the same")));
        let newer = format!("{MARKER}\n{{\"version\": 9}}\n");
        assert!(parse_answer(&newer).is_err_and(|why| why.contains("version 9")));
    }
}
