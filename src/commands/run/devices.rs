//! RDMA devices of ranks: a matrix of ranks derived from the hostfile's devices of hosts.
//!
//! Ranks of one host share its devices for traffic to other hosts; among themselves they use shared memory.
//! Transports without shared memory therefore get a matrix only where each host has one rank; otherwise they
//! discover devices.

use topology::Hostfile;

/// The variable that names the file.
pub(super) const VARIABLE: &str = "TBCCL_IBV_DEVICES";

/// Returns the device matrix of ranks as JSON, if the hostfile has one of hosts and the transport can use it.
///
/// `rank_hosts` is the index in the file of each rank's host; `transport` is the user's choice, if any.
pub(super) fn matrix(file: &Hostfile, rank_hosts: &[usize], transport: Option<&str>) -> Option<String> {
    let devices = file.devices.as_ref()?;
    let hosts: Vec<u32> = rank_hosts.iter().filter_map(|host| u32::try_from(*host).ok()).collect();
    let mut used = hosts.clone();
    used.sort_unstable();
    used.dedup();
    let hosts_shared = used.len() < hosts.len();
    let is_useful = used.len() > 1 && !(hosts_shared && transport == Some("verbs"));
    is_useful.then(|| devices.of_ranks(&hosts).to_json())
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREE: &str = r#"{"hosts": [
        {"ssh": "a", "ips": [], "rdma": [null, "en1", ["en2", "en3"]]},
        {"ssh": "b", "ips": [], "rdma": ["en4", null, null]},
        {"ssh": "c", "ips": [], "rdma": [["en5", "en6"], null, null]}]}"#;

    fn matrix_for(rank_hosts: &[usize], transport: Option<&str>) -> Option<String> {
        matrix(&Hostfile::parse(THREE.as_bytes()).expect("a hostfile"), rank_hosts, transport)
    }

    #[test]
    fn ranks_use_the_devices_of_their_hosts_and_none_within_one() {
        let expected = r#"[[null,null,"en1"],[null,null,"en1"],["en4","en4",null]]"#;
        assert_eq!(matrix_for(&[0, 0, 1], None).as_deref(), Some(expected));
        assert_eq!(matrix_for(&[0, 0, 1], Some("shm+verbs")).as_deref(), Some(expected));
        let expected = r#"[[null,["en5","en6"]],[["en2","en3"],null]]"#;
        assert_eq!(matrix_for(&[2, 0], Some("verbs")).as_deref(), Some(expected), "whichever hosts are used");
    }

    #[test]
    fn nothing_is_said_where_it_would_be_of_no_use() {
        assert_eq!(matrix_for(&[0, 0], None), None, "one host");
        assert_eq!(matrix_for(&[0, 0, 1], Some("verbs")), None, "no device within a host");
        let plain = Hostfile::parse(b"a slots=2\nb slots=2\n").expect("a hostfile");
        assert_eq!(matrix(&plain, &[0, 1], None), None);
    }
}
