//! Many ranks.

use super::*;

/// Has so many ranks join over TCP and exchange a few bytes; how long that took from the first to the last.
fn start(ranks: u32) -> Duration {
    let (server, secret) = open(ranks);
    let place = Place { patience: Duration::from_secs(60), ..place(&server, &secret, Way::Tcp) };
    let began = Instant::now();
    thread::scope(|scope| {
        for rank in 0..ranks {
            let place = &place;
            let run = move || {
                let mut connection = join(place, &hello(rank, ranks, 60_000)).expect("all join");
                let parts = connection.exchange(&rank.to_le_bytes()).expect("all give");
                assert!(parts.iter().zip(0..).all(|(part, rank): (_, u32)| part[..] == rank.to_le_bytes()));
                connection.goodbye(Vec::new());
            };
            thread::Builder::new().stack_size(256 << 10).spawn_scoped(scope, run).expect("a thread");
        }
    });
    let took = began.elapsed();
    let attendance = server.wait_until(|attendance| attendance.is_over, SECOND * 20);
    assert_eq!((attendance.joined, attendance.gone), (ranks, ranks));
    assert_eq!(server.refused().ranks, 0);
    took
}

#[test]
fn a_hundred_ranks_come_together_over_tcp() {
    start(100);
}
