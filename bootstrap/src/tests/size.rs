//! Tests with many ranks.

use super::*;

/// Lets `ranks` ranks join over TCP and exchange a few bytes. Returns the time from the first to the last.
fn start(ranks: u32) -> Duration {
    let (server, secret) = open(ranks);
    let rendezvous =
        ConnectSpec { timeout: Duration::from_secs(60), ..rendezvous(&server, &secret, Way::Tcp) };
    let began = Instant::now();
    thread::scope(|scope| {
        for rank in 0..ranks {
            let rendezvous = &rendezvous;
            let run = move || {
                let mut connection = join(rendezvous, &hello(rank, ranks, 60_000)).expect("all join");
                let parts = connection.exchange(&rank.to_le_bytes()).expect("all give");
                assert!(parts.iter().zip(0..).all(|(part, rank): (_, u32)| part[..] == rank.to_le_bytes()));
                connection.goodbye(Vec::new());
            };
            thread::Builder::new().stack_size(256 << 10).spawn_scoped(scope, run).expect("a thread");
        }
    });
    let took = began.elapsed();
    let status = server.wait_until(|status| status.is_over, SECOND * 20);
    assert_eq!((status.joined, status.gone), (ranks, ranks));
    assert_eq!(server.rejections().ranks, 0);
    took
}

/// Raises the limit on descriptors as far as possible. Returns whether it suffices.
fn may_have_descriptors(count: u64) -> bool {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= count) {
        return true;
    }
    limit.maximum.is_none_or(|maximum| maximum >= count)
        && setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).is_ok()
}

#[test]
fn a_hundred_ranks_come_together_over_tcp() {
    assert!(start(100) < SECOND * 30);
}

/// Measures the time to start. Run with `cargo test --release -p tbccl-bootstrap --lib start_up -- --ignored
/// --nocapture`.
#[test]
#[ignore = "measures, and takes all cores"]
fn start_up_of_up_to_a_thousand_ranks() {
    for ranks in [2, 16, 64, 256, 1024] {
        if !may_have_descriptors(u64::from(ranks) * 2 + 200) {
            eprintln!("{ranks} ranks: not tried, since this process may not open enough descriptors");
            continue;
        }
        let mut took: Vec<Duration> = (0..5).map(|_| start(ranks)).collect();
        took.sort();
        eprintln!(
            "{ranks} ranks as threads, over TCP: {:.1?} (from {:.1?} to {:.1?})",
            took[2], took[0], took[4]
        );
    }
}
