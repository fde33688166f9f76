//! Clocks that can be set, which no time limit may follow.
//!
//! The time of day jumps when it is set, or when a laptop has been asleep. Time limits, deadlines and waits
//! follow `Instant`, which does not. The time of day serves for people: in dumps and in prefixes of lines.

use crate::sources::{files, root};

/// Names of clocks that can be set.
const CLOCKS: [&str; 4] = ["SystemTime", "CLOCK_REALTIME", "ClockId::Realtime", "time.time()"];

/// Sources that tell people the time or compare the clocks of hosts, and a software device that gives
/// completions the time of day.
const FOR_PEOPLE: [&str; 8] = [
    "events/src/record.rs",
    "runtime/src/recorder/dump.rs",
    "src/commands/page/machine.rs",
    "src/commands/selftest/report/mod.rs",
    "src/commands/survey/gather.rs",
    "src/commands/survey/hosts.rs",
    "src/launch/lines.rs",
    "transport/softrdma/src/abi/cq_ex.rs",
];

#[test]
fn no_time_limit_follows_a_clock_that_can_be_set() {
    let is_product = |path: &str| !path.split('/').any(|part| part.starts_with("test") || part == "benches");
    let mut found: Vec<String> = files(root(), &["rs", "py"])
        .into_iter()
        .filter(|(_, text)| CLOCKS.iter().any(|clock| text.contains(clock)))
        .map(|(path, _)| path)
        .filter(|path| is_product(path))
        .collect();
    found.sort_unstable();
    assert_eq!(found, FOR_PEOPLE);
}
