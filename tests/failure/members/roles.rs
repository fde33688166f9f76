//! The roles of ranks in these tests.

use super::acts;
use tbccl::Communicator;

/// Plays the role of this process, if it has one; not a test.
#[test]
fn play() {
    let Ok(role) = std::env::var("ROLE") else { return };
    let comm = Communicator::from_env().expect("all join");
    match role.split_once(' ').unwrap_or((&role, "")) {
        ("split", _) => acts::split(comm),
        ("shrink_healthy", _) => acts::shrink_healthy(comm),
        ("ladder", seed) => acts::ladder(comm, seed.parse().expect("a number"), 2, acts::LARGE),
        ("brief_ladder", seed) => acts::ladder(comm, seed.parse().expect("a number"), 2, acts::LARGE / 64),
        ("two_die", _) => acts::two_die(comm),
        ("grow", _) => acts::grow(comm),
        (other, _) => panic!("no role {other}"),
    }
}
