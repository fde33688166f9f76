//! Environment variables of MLX's launcher, for each of its backends.
//!
//! | `mlx.launch --backend` | number of ranks | address of rank 0 |
//! |---|---|---|
//! | `nccl` | `MLX_WORLD_SIZE` | `NCCL_HOST_IP`, `NCCL_PORT` |
//! | `ring` | the file of `MLX_HOSTFILE`: a list with the addresses of each rank | the first of them |
//! | `jaccl`, `jaccl-ring` | the file of `MLX_IBV_DEVICES`: each rank's devices | `MLX_JACCL_COORDINATOR` |
//!
//! Programs of JACCL, MLX's library for RDMA, have the variables `JACCL_RANK`, `JACCL_IBV_DEVICES` and
//! `JACCL_COORDINATOR` for the last row. Where both forms are set, those of JACCL count, as in JACCL itself.
//!
//! `--backend mpi` starts `mpirun`, which sets variables of its own. A program that uses tbccl does not use
//! the backend it was started for, so the backend's port is free for the rendezvous.

use crate::address::host_and_port;
use crate::environment::Vars;
use serde::{
    Deserialize,
    de::{DeserializeOwned, IgnoredAny},
};

/// Name of this launcher.
pub(super) const NAME: &str = "mlx.launch";
/// Name of launchers that set JACCL's own variables.
pub(super) const JACCL_NAME: &str = "JACCL's variables";
/// Variable with the rank.
pub(super) const RANK: &str = "MLX_RANK";
/// Variable of JACCL with the rank.
pub(super) const JACCL_RANK: &str = "JACCL_RANK";
/// Variable with the number of ranks; only some backends set it.
pub(super) const SIZE: &str = "MLX_WORLD_SIZE";
const HOSTFILE: &str = "MLX_HOSTFILE";
const DEVICES: &str = "MLX_IBV_DEVICES";
const JACCL_DEVICES: &str = "JACCL_IBV_DEVICES";
/// Variables with the address of rank 0; the first that is set counts.
const COORDINATORS: [&str; 2] = ["JACCL_COORDINATOR", "MLX_JACCL_COORDINATOR"];

/// Addresses of a rank in a host file: `mlx.launch` writes a list, exo a single address.
#[derive(Deserialize)]
#[serde(untagged)]
enum Addresses {
    One(String),
    Several(Vec<String>),
}

impl Addresses {
    fn first(&self) -> Option<&str> {
        match self {
            Addresses::One(address) => Some(address),
            Addresses::Several(addresses) => addresses.first().map(String::as_str),
        }
    }
}

/// A file with one entry per rank.
pub(super) struct RankList {
    /// Variable that names the file.
    pub(super) variable: &'static str,
    /// Number of ranks, as text.
    pub(super) ranks: String,
}

/// Reads the number of ranks from the launcher's file; `None` if no variable names one.
///
/// # Errors
/// A sentence that names the file that cannot be read.
pub(super) fn rank_list(vars: &Vars) -> Result<Option<RankList>, String> {
    let Some(variable) = [HOSTFILE, JACCL_DEVICES, DEVICES].into_iter().find(|name| vars.get(name).is_some())
    else {
        return Ok(None);
    };
    let entries: Vec<IgnoredAny> = read_list(vars, variable)?;
    // The file of a ring with one rank is empty.
    Ok(Some(RankList { variable, ranks: entries.len().max(1).to_string() }))
}

/// Reads the list in the file that a variable names; an empty file is an empty list.
fn read_list<T: DeserializeOwned>(vars: &Vars, variable: &str) -> Result<Vec<T>, String> {
    let path = vars.get(variable).unwrap_or_default();
    let text = std::fs::read_to_string(path).map_err(|e| format!("{variable}={path}: {e}"))?;
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    serde_json::from_str(&text).map_err(|e| {
        format!(
            "{variable}={path} is not as mlx.launch writes it, a list in JSON with an entry per rank: {e}"
        )
    })
}

/// Returns the host and port at which the ranks can meet.
///
/// # Errors
/// A sentence that names the missing or malformed variable.
pub(super) fn root_address(vars: &Vars) -> Result<(String, u16), String> {
    if let Some(host) = vars.get("NCCL_HOST_IP") {
        let port = vars.get("NCCL_PORT").ok_or("NCCL_HOST_IP is set and NCCL_PORT is not set")?;
        let number = port.parse().ok().filter(|port| *port != 0);
        return Ok((host.to_owned(), number.ok_or_else(|| format!("NCCL_PORT={port} is not a port"))?));
    }
    if vars.get(HOSTFILE).is_some() {
        let hosts: Vec<Addresses> = read_list(vars, HOSTFILE)?;
        let first = hosts.first().and_then(Addresses::first).unwrap_or_default();
        let found = host_and_port(first);
        return found.ok_or_else(|| match first.ends_with(":0") {
            true => format!(
                "{HOSTFILE} has no address of rank 0 but `{first}`, which exo writes for hosts that are not \
                 neighbors in its ring: set TBCCL_ROOT=HOST:PORT on all hosts, an address of the first host \
                 and a free port"
            ),
            false => format!("{HOSTFILE}: the first address of rank 0 is `{first}`, and not HOST:PORT"),
        });
    }
    if let Some((name, text)) = COORDINATORS.iter().find_map(|name| Some((name, vars.get(name)?))) {
        return host_and_port(text).ok_or_else(|| format!("{name}={text} is not HOST:PORT"));
    }
    Err(format!(
        "{RANK} or {JACCL_RANK} says which rank this is, but no variable gives the address of rank 0: start \
         the program with `tbccl run`, or with `mlx.launch` of the backend nccl, ring or jaccl, whose \
         variables are NCCL_HOST_IP and NCCL_PORT, {HOSTFILE}, or MLX_JACCL_COORDINATOR"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn file(text: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        file.write_all(text.as_bytes()).expect("written");
        file
    }

    fn vars_of(pairs: &[(&str, &str)]) -> Vars {
        Vars::from_pairs(pairs)
    }

    #[test]
    fn files_say_how_many_ranks_there_are_and_where_the_first_is() {
        let ring = file(r#"[["10.0.0.1:32323", "10.0.0.1:32324"], ["10.0.0.2:32325"], ["[fd00::3]:1"]]"#);
        let vars = vars_of(&[(HOSTFILE, ring.path().to_str().expect("a path"))]);
        assert_eq!(
            rank_list(&vars).map(|rank_list| rank_list.map(|rank_list| rank_list.ranks)),
            Ok(Some("3".into()))
        );
        assert_eq!(root_address(&vars), Ok(("10.0.0.1".into(), 32323)));
        let devices = file(r#"[[null, "rdma_en2"], ["rdma_en3", null]]"#);
        let vars = vars_of(&[
            (DEVICES, devices.path().to_str().expect("a path")),
            ("MLX_JACCL_COORDINATOR", "10.0.0.7:5000"),
        ]);
        assert_eq!(
            rank_list(&vars).map(|rank_list| rank_list.map(|rank_list| rank_list.ranks)),
            Ok(Some("2".into()))
        );
        assert_eq!(root_address(&vars), Ok(("10.0.0.7".into(), 5000)));
        assert!(matches!(rank_list(&vars_of(&[(SIZE, "2")])), Ok(None)));
    }

    #[test]
    fn a_host_file_may_have_one_address_per_rank_as_exo_writes_it() {
        let ring = file(r#"["10.0.0.1:52414", "10.0.0.2:52414"]"#);
        let vars = vars_of(&[(HOSTFILE, ring.path().to_str().expect("a path"))]);
        let ranks = rank_list(&vars).map(|rank_list| rank_list.map(|rank_list| rank_list.ranks));
        assert_eq!(ranks, Ok(Some("2".into())));
        assert_eq!(root_address(&vars), Ok(("10.0.0.1".into(), 52414)));
    }

    #[test]
    fn a_rank_of_exo_that_does_not_know_the_first_host_is_told_the_option() {
        let ring = file(r#"["198.51.100.1:0", "10.0.0.2:52414", "0.0.0.0:52414", "10.0.0.4:52414"]"#);
        let vars = vars_of(&[(HOSTFILE, ring.path().to_str().expect("a path"))]);
        let error = root_address(&vars).expect_err("no address");
        assert!(error.contains("198.51.100.1:0") && error.contains("TBCCL_ROOT=HOST:PORT"), "{error}");
    }

    #[test]
    fn the_variables_of_jaccl_count_before_those_of_mlx() {
        let (two, three) = (file("[[null, 1], [1, null]]"), file("[[], [], []]"));
        let path = |file: &tempfile::NamedTempFile| file.path().to_str().expect("a path").to_owned();
        let (two, three) = (path(&two), path(&three));
        let vars = vars_of(&[
            (DEVICES, &three),
            (JACCL_DEVICES, &two),
            ("MLX_JACCL_COORDINATOR", "h:1"),
            ("JACCL_COORDINATOR", "h:2"),
        ]);
        let found = rank_list(&vars).expect("a list").expect("a variable");
        assert_eq!((found.variable, found.ranks.as_str()), (JACCL_DEVICES, "2"));
        assert_eq!(root_address(&vars), Ok(("h".into(), 2)));
    }

    #[test]
    fn a_ring_of_one_has_an_empty_file() {
        let ring = file("\n");
        let vars = vars_of(&[(HOSTFILE, ring.path().to_str().expect("a path"))]);
        assert_eq!(
            rank_list(&vars).map(|rank_list| rank_list.map(|rank_list| rank_list.ranks)),
            Ok(Some("1".into()))
        );
    }

    #[test]
    fn what_is_missing_or_senseless_is_said_by_name() {
        let broken = file("10.0.0.1");
        let odd = file(r#"[["10.0.0.1"], ["10.0.0.2:1"]]"#);
        let (broken, odd) = (broken.path().to_str().expect("a path"), odd.path().to_str().expect("a path"));
        let no_roll = |pairs: &[(&str, &str)]| rank_list(&vars_of(pairs)).map(drop).expect_err("no list");
        assert!(no_roll(&[(HOSTFILE, broken)]).contains("is not as mlx.launch writes it"));
        assert!(no_roll(&[(DEVICES, "/nowhere")]).contains("MLX_IBV_DEVICES=/nowhere: "));
        for (pairs, says) in [
            (&[][..], "NCCL_HOST_IP and NCCL_PORT, MLX_HOSTFILE, or MLX_JACCL_COORDINATOR"),
            (&[("NCCL_HOST_IP", "h")], "NCCL_PORT is not set"),
            (&[("NCCL_HOST_IP", "h"), ("NCCL_PORT", "0")], "NCCL_PORT=0 is not a port"),
            (&[("MLX_JACCL_COORDINATOR", "h")], "MLX_JACCL_COORDINATOR=h is not HOST:PORT"),
            (&[(HOSTFILE, odd)], "`10.0.0.1`, and not HOST:PORT"),
        ] {
            let error = root_address(&vars_of(pairs)).expect_err(says);
            assert!(error.contains(says), "{error}");
        }
    }
}
