//! Samples of the rendezvous' clock.

use super::{SECOND, WAYS, run_three};
use crate::{Notice, monotonic_nanos};
use std::sync::Barrier;

/// Rendezvous and ranks of this test have one clock, so the time of the rendezvous lies between the two local
/// times of each sample.
#[test]
fn a_sample_has_the_time_of_the_rendezvous_between_two_local_times() {
    for way in WAYS {
        let done = Barrier::new(3);
        run_three(way, 10_000, |_, mut connection| {
            let began = monotonic_nanos();
            let samples = connection.sample_clock(10, SECOND);
            assert_eq!(samples.len(), 10, "{way:?}");
            assert!(samples[0].sent >= began && samples[9].received <= monotonic_nanos(), "{samples:?}");
            for sample in &samples {
                assert!(sample.sent <= sample.server && sample.server <= sample.received, "{sample:?}");
            }
            assert!(samples.is_sorted_by_key(|sample| sample.sent), "{samples:?}");
            done.wait();
            connection.goodbye(Vec::new());
        });
    }
}

#[test]
fn notices_that_arrive_while_a_clock_is_sampled_are_kept() {
    for way in WAYS {
        let (reported, done) = (Barrier::new(3), Barrier::new(3));
        run_three(way, 10_000, |rank, mut connection| {
            if rank == 0 {
                connection.report_failure(vec![(8, 1)]);
            }
            reported.wait();
            assert_eq!(connection.sample_clock(5, SECOND).len(), 5, "{way:?}");
            assert_eq!(
                super::notice(&mut connection, SECOND * 3),
                Some(Notice::Failed(vec![(8, 1)])),
                "{way:?}"
            );
            done.wait();
            connection.goodbye(Vec::new());
        });
    }
}
