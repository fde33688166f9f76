//! Variables that MLX's backends read, as MLX's own launcher sets them.
//!
//! | backend | variables |
//! |---|---|
//! | `ring`, or none | `MLX_HOSTFILE`: a file with the addresses and ports of each rank |
//! | `jaccl`, `jaccl-ring` | `MLX_IBV_DEVICES`: device matrix; `MLX_JACCL_COORDINATOR`; `MLX_JACCL_RING` |
//! | `nccl` | `NCCL_HOST_IP`, `NCCL_PORT` |
//! | `mpi` | none: it finds the ranks through tbccl's library |
//!
//! The device matrix is indexed by rank, so it exists only when each host has one rank. Without a backend
//! both files are set where possible. With `MLX_HOSTFILE` set, MLX's `init()` chooses its own ring; a
//! hostfile for tbccl says `backend = "mpi"`.

use std::ffi::OsString;
use topology::{Host, Hostfile};

/// Highest port number.
const LAST_PORT: u32 = 65535;

/// The values that determine MLX's variables.
#[derive(Debug)]
pub(super) struct Job<'a> {
    pub(super) file: &'a Hostfile,
    /// Index in the file of each rank's host.
    pub(super) rank_hosts: &'a [usize],
    /// First port.
    pub(super) port: u16,
}

impl Job<'_> {
    /// Returns variables for every rank.
    pub(super) fn variables(&self) -> Vec<(OsString, OsString)> {
        let mut variables = Vec::new();
        let mut set = |key: &str, value: String| variables.push((key.into(), value.into()));
        let first = self.address(0).unwrap_or_default();
        if self.matrix().is_some() {
            set("MLX_JACCL_COORDINATOR", format!("{first}:{}", self.port));
        }
        match self.file.backend.as_deref() {
            Some("jaccl-ring") => set("MLX_JACCL_RING", "1".to_owned()),
            Some("nccl") => {
                set("NCCL_HOST_IP", first.to_owned());
                set("NCCL_PORT", self.port.to_string());
            }
            _ => {}
        }
        variables
    }

    /// Returns files for every rank, each with the variable that names it.
    pub(super) fn files(&self) -> Vec<(String, String)> {
        let mut files = Vec::new();
        files.extend(self.matrix().map(|matrix| ("MLX_IBV_DEVICES".to_owned(), matrix)));
        files.extend(self.ring().map(|ring| ("MLX_HOSTFILE".to_owned(), ring)));
        files
    }

    /// Returns the address of a rank's host.
    fn address(&self, rank: usize) -> Option<&str> {
        self.rank_hosts.get(rank).map(|host| address_of(&self.file.hosts[*host]))
    }

    fn matrix(&self) -> Option<String> {
        let devices = self.file.devices.as_ref()?;
        let backend_uses_matrix = !matches!(self.file.backend.as_deref(), Some("ring" | "mpi" | "nccl"));
        let in_order = self.rank_hosts.iter().copied().eq(0..self.file.hosts.len());
        (backend_uses_matrix && in_order).then(|| devices.to_json())
    }

    fn ring(&self) -> Option<String> {
        if !matches!(self.file.backend.as_deref(), None | Some("ring")) {
            return None;
        }
        let mut port = u32::from(self.port);
        let mut rows = Vec::new();
        for host in self.rank_hosts {
            let host = &self.file.hosts[*host];
            let addresses =
                if host.addresses.is_empty() { vec![address_of(host)] } else { texts(&host.addresses) };
            let mut row = Vec::new();
            for address in addresses {
                // Too many ranks for the ports: MLX's ring is not possible.
                if port > LAST_PORT {
                    return None;
                }
                row.push(format!("{address}:{port}"));
                port += 1;
            }
            rows.push(row);
        }
        serde_json::to_string(&rows).ok()
    }
}

fn texts(list: &[String]) -> Vec<&str> {
    list.iter().map(String::as_str).collect()
}

/// Returns a host's first address, or its ssh name without the user.
fn address_of(host: &Host) -> &str {
    let name = host.name.rsplit('@').next().unwrap_or_default();
    host.addresses.first().map_or(name, String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = r#"{"hosts": [
        {"ssh": "a", "ips": ["10.0.0.1", "10.0.1.1"], "rdma": [null, "en1"]},
        {"ssh": "me@b", "ips": [], "rdma": ["en2", null]}]"#;

    type Variables = Vec<(OsString, OsString)>;
    type Files = Vec<(String, String)>;

    fn job(backend: &str, rank_hosts: &[usize]) -> (Variables, Files) {
        let backend = if backend.is_empty() { String::new() } else { format!(r#", "backend": "{backend}""#) };
        let file = Hostfile::parse(format!("{TWO}{backend}}}").as_bytes()).expect("a hostfile");
        let job = Job { file: &file, rank_hosts, port: 5000 };
        (job.variables(), job.files())
    }

    fn names(files: &[(String, String)]) -> Vec<&str> {
        files.iter().map(|(name, _)| name.as_str()).collect()
    }

    #[test]
    fn a_ring_has_a_port_for_every_address_of_every_rank() {
        let (variables, files) = job("ring", &[0, 1, 1]);
        assert!(variables.is_empty());
        let expected = r#"[["10.0.0.1:5000","10.0.1.1:5001"],["b:5002"],["b:5003"]]"#;
        assert_eq!(files, [("MLX_HOSTFILE".to_owned(), expected.to_owned())]);
    }

    #[test]
    fn jaccl_gets_the_matrix_and_the_coordinator() {
        let (variables, files) = job("jaccl-ring", &[0, 1]);
        assert_eq!(files, [("MLX_IBV_DEVICES".to_owned(), r#"[[null,"en1"],["en2",null]]"#.to_owned())]);
        let expected = [("MLX_JACCL_COORDINATOR", "10.0.0.1:5000"), ("MLX_JACCL_RING", "1")];
        assert_eq!(variables, expected.map(|(key, value)| (key.into(), value.into())));
    }

    #[test]
    fn a_matrix_of_hosts_is_none_of_several_ranks_per_host() {
        assert_eq!(names(&job("jaccl", &[0, 0, 1]).1), Vec::<&str>::new());
        assert_eq!(names(&job("jaccl", &[0]).1), Vec::<&str>::new());
    }

    #[test]
    fn without_a_backend_all_that_can_be_is_there_and_with_mpi_nothing() {
        assert_eq!(names(&job("", &[0, 1]).1), ["MLX_IBV_DEVICES", "MLX_HOSTFILE"]);
        assert_eq!(job("mpi", &[0, 1]), (Vec::new(), Vec::new()));
        assert_eq!(job("nccl", &[0, 1]).0[1], ("NCCL_PORT".into(), "5000".into()));
    }
}
