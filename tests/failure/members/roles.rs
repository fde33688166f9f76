//! The roles of ranks in these tests.

use super::scenarios;
use tbccl::Communicator;

/// Plays the role of this process, if it has one; not a test.
#[test]
fn play() {
    let Ok(role) = std::env::var("ROLE") else { return };
    let comm = Communicator::from_env().expect("all join");
    match role.split_once(' ').unwrap_or((&role, "")) {
        ("split", _) => scenarios::split(comm),
        ("shrink_healthy", _) => scenarios::shrink_healthy(comm),
        ("ladder", seed) => scenarios::ladder(comm, seed.parse().expect("a number"), 2, scenarios::LARGE),
        ("brief_ladder", seed) => {
            scenarios::ladder(comm, seed.parse().expect("a number"), 2, scenarios::LARGE / 64);
        }
        ("split_orphaned", victim) => {
            scenarios::split_orphaned(comm, tbccl::Rank(victim.parse().expect("a number")));
        }
        ("two_die", _) => scenarios::two_die(comm),
        ("grow", _) => scenarios::grow(comm),
        ("grow_orphaned", _) => scenarios::grow_orphaned(comm),
        ("grow_alone", _) => scenarios::grow_alone(comm),
        (other, _) => panic!("no role {other}"),
    }
}
