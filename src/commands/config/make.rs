//! Makes changes on this host.
//!
//! Each change is one command, run as root: by `sudo -n`, which never asks for a password, unless this
//! process is root. The first command that fails ends the work, and nothing is taken back: `tbccl config
//! --undo` knows what has been made. Changes that the host does not need are counted as made.

use super::change::Change;
use crate::launch::output_within;
use inventory::Inventory;
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use std::{process::Command, time::Duration};

/// Time that one command may take.
const LIMIT: Duration = Duration::from_secs(20);

/// Folders of the commands, which a login by ssh may lack.
const PATH: &str = "/usr/sbin:/sbin:/usr/bin:/bin";

/// Line before the JSON of an answer, which tells it from the output of login shells.
const MARKER: &str = "#!tbccl-changes";

/// Outcome of a list of changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Made {
    /// Changes that were made, or were not needed; the first ones of the list.
    pub(super) count: usize,
    /// Why the next one was not made.
    pub(super) error: Option<String>,
}

impl Made {
    /// Returns the answer for the host that asks.
    pub(super) fn answer(&self) -> String {
        format!("{MARKER}\n{}\n", serde_json::to_string(self).unwrap_or_default())
    }

    /// Reads an answer.
    pub(super) fn read(output: &str) -> Result<Made, String> {
        let (_, json) = output
            .rsplit_once(MARKER)
            .ok_or("the program that answers is not this tbccl; install the same on both hosts")?;
        serde_json::from_str(json.trim()).map_err(|error| format!("the answer is no JSON: {error}"))
    }
}

/// Makes changes on this host, which is as in `inventory`, in order.
pub(super) fn make(changes: &[Change], inventory: &Inventory) -> Made {
    let needed = |change: &&Change| change.is_needed(inventory);
    let mut made = Made::default();
    for change in changes {
        if Some(change).filter(needed).is_some()
            && let Err(error) = run(&change.command(inventory.system))
        {
            made.error = Some(error);
            break;
        }
        made.count += 1;
    }
    made
}

fn run(words: &[String]) -> Result<(), String> {
    let is_root = geteuid().is_root();
    let line = shown(words);
    let words: Vec<&str> =
        ["sudo", "-n"].into_iter().filter(|_| !is_root).chain(words.iter().map(String::as_str)).collect();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).env("PATH", PATH).env("LC_ALL", "C");
    let output = match output_within(command, LIMIT) {
        Err(error) => return Err(format!("`{line}`: can't run `{}`: {error}", words[0])),
        Ok(None) => return Err(format!("`{line}`: not done within {LIMIT:?}")),
        Ok(Some(output)) if output.status.success() => return Ok(()),
        Ok(Some(output)) => output,
    };
    let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
    Err(if !is_root && said.contains("password is required") {
        needs_password(&line)
    } else {
        format!("`{line}`: {said}")
    })
}

/// Returns a command as it is shown to people.
pub(super) fn shown(words: &[String]) -> String {
    format!("sudo {}", words.join(" "))
}

/// Returns what to do where sudo asks for a password, which nobody could type.
fn needs_password(line: &str) -> String {
    let user = std::env::var("USER").unwrap_or_else(|_| "USER".to_owned());
    let programs =
        if cfg!(target_os = "macos") { "/sbin/ifconfig" } else { "/usr/sbin/ip, /usr/sbin/modprobe" };
    format!(
        "`{line}`: sudo asks for a password; allow it without one by `sudo visudo -f /etc/sudoers.d/tbccl` \
         with the line `{user} ALL=(root) NOPASSWD: {programs}`, or run the command there yourself"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use inventory::System;

    #[test]
    fn an_answer_is_found_behind_the_greeting_of_a_shell() {
        let made = Made { count: 2, error: Some("no".into()) };
        assert_eq!(Made::read(&format!("Welcome!\n{}", made.answer())), Ok(made));
        assert!(Made::read("Welcome!\n").is_err_and(|why| why.contains("install the same")));
        assert!(Made::read(&format!("{MARKER}\n{{")).is_err_and(|why| why.contains("no JSON")));
    }

    #[test]
    fn changes_that_are_not_needed_run_no_command() {
        let gone = Change::NoAddress { interface: "no-such".into(), address: [10, 0, 0, 1].into() };
        assert_eq!(make(&[gone.clone(), gone], &Inventory::default()), Made { count: 2, error: None });
    }

    #[test]
    fn a_command_that_fails_ends_the_work_and_is_named() {
        let linux = Inventory { system: System::Linux, ..Inventory::default() };
        let up = Change::Up { interface: "tbccl-none".into() };
        let made = make(&[up.clone(), up], &linux);
        assert_eq!(made.count, 0);
        assert!(made.error.is_some_and(|error| error.starts_with("`sudo ip link set tbccl-none up`: ")));
    }
}
