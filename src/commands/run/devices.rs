//! RDMA devices of ranks: the hostfile's devices of hosts, as a matrix of ranks.
//!
//! Ranks of one host share its devices for traffic to other hosts; between them there is shared memory, and
//! no device. So transports without shared memory get a matrix only where each host has one rank; otherwise
//! they discover devices.

use topology::Hostfile;

/// The variable that names the file.
pub(super) const VARIABLE: &str = "TBCCL_IBV_DEVICES";

/// Returns the matrix of ranks as JSON, where the hostfile has one of hosts and the transport can use it.
/// `places` are the ranks' hosts in the file, `transport` the user's choice, if any.
pub(super) fn matrix(file: &Hostfile, places: &[usize], transport: Option<&str>) -> Option<String> {
    let devices = file.devices.as_ref()?;
    let hosts: Vec<u32> = places.iter().filter_map(|at| u32::try_from(*at).ok()).collect();
    let mut used = hosts.clone();
    used.sort_unstable();
    used.dedup();
    let shares = used.len() < hosts.len();
    let is_of_use = used.len() > 1 && !(shares && transport == Some("verbs"));
    is_of_use.then(|| devices.of_ranks(&hosts).to_json())
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREE: &str = r#"{"hosts": [
        {"ssh": "a", "ips": [], "rdma": [null, "en1", ["en2", "en3"]]},
        {"ssh": "b", "ips": [], "rdma": ["en4", null, null]},
        {"ssh": "c", "ips": [], "rdma": [["en5", "en6"], null, null]}]}"#;

    fn matrix_for(places: &[usize], transport: Option<&str>) -> Option<String> {
        matrix(&Hostfile::parse(THREE.as_bytes()).expect("a hostfile"), places, transport)
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
