//! Fabric files: inputs that fuzzing has found are replayed.

#[expect(unreachable_pub, reason = "a fuzz target uses it, too")]
#[path = "../../../fuzz/src/fabric.rs"]
mod fabric;

#[test]
fn fabric_files_are_replayed() {
    support::replay("fabric_file", fabric::parse_fabric);
}
