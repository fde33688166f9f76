//! Tests of ranks that do not fit together: each is told the reason, and so is the server's owner.

use super::*;
use crate::wire::PROTOCOL;

/// Joins with these hellos one after the other. Returns each rank's error and the server's count of
/// rejections.
fn join_all(ranks: u32, way: Way, hellos: &[Hello]) -> (Vec<Option<String>>, u64) {
    let (server, secret) = open(ranks);
    let rendezvous = rendezvous(&server, &secret, way);
    let errors = thread::scope(|scope| {
        let threads: Vec<_> = hellos
            .iter()
            .zip(1..)
            .map(|(hello, count)| {
                let rendezvous = &rendezvous;
                let thread =
                    scope.spawn(move || join(rendezvous, hello).err().map(|error| error.to_string()));
                // Each rank joins after those before it.
                let is_there = |seen: &crate::JobStatus| seen.joined == count;
                server.wait_until(is_there, Duration::from_millis(300));
                thread
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    (errors, server.rejections().ranks)
}

fn with(mut hello: Hello, key: &str, value: &str) -> Hello {
    hello.options.insert(key.into(), value.into());
    hello
}

#[test]
fn options_that_differ_are_named_to_every_rank_with_values_and_ranks() {
    for way in WAYS {
        let hellos = [
            with(hello(2, 3, 5000), "TBCCL_PIECE_BYTES", "16384"),
            with(hello(0, 3, 5000), "TBCCL_PIECE_BYTES", "32768"),
            with(hello(1, 3, 5000), "TBCCL_PIECE_BYTES", "32768"),
        ];
        let (errors, refused) = join_all(3, way, &hellos);
        let why =
            "TBCCL_PIECE_BYTES must be equal on all ranks: it is `16384` on rank 2 and `32768` on rank 0";
        assert!(errors.iter().all(|errors| errors.as_deref() == Some(why)), "{way:?}: {errors:?}");
        assert_eq!(refused, 2, "the one that differs, and the one that is late");
    }
}

#[test]
fn duplicates_and_those_of_another_job_are_refused_with_the_reason() {
    for way in WAYS {
        let (errors, refused) = join_all(2, way, &[hello(0, 2, 5000), hello(0, 2, 5000), hello(1, 2, 5000)]);
        assert_eq!((&errors[0], &errors[2], refused), (&None, &None, 1), "the job goes on");
        assert!(
            errors[1].as_ref().is_some_and(|why| why.contains("rank 0 has already joined")),
            "{errors:?}"
        );
        let (errors, refused) = join_all(2, way, &[hello(0, 2, 5000), hello(3, 4, 5000)]);
        let why = Some("rank 3 of 4 cannot join a job of 2 ranks".to_owned());
        assert_eq!((errors, refused), (vec![why; 2], 1));
    }
}

#[test]
fn another_version_is_refused_with_the_reason_on_both_sides() {
    for way in WAYS {
        let newer = Hello { protocol: PROTOCOL + 1, ..hello(1, 2, 5000) };
        let (errors, refused) = join_all(2, way, &[hello(0, 2, 5000), newer]);
        let says = format!("a rank speaks protocol {}, the launcher {PROTOCOL}", PROTOCOL + 1);
        assert!(errors.iter().flatten().all(|why| why.starts_with(&says)), "{errors:?}");
        assert_eq!((errors.iter().flatten().count(), refused), (2, 1));
    }
}

#[test]
fn a_rank_that_comes_when_the_job_is_over_is_told_so() {
    let (server, secret) = open(1);
    let rendezvous = rendezvous(&server, &secret, Way::Tcp);
    join(&rendezvous, &hello(0, 1, 5000)).expect("alone").goodbye(vec![]);
    server.wait_until(|status| status.is_over, SECOND);
    let error = join(&rendezvous, &hello(0, 1, 5000)).expect_err("late").to_string();
    assert!(error.contains("rank 0 has already joined"), "{error}");
}

#[test]
fn memory_is_not_shared_over_tcp_but_by_the_socket_of_the_same_host() {
    let (server, secret) = open(2);
    let rendezvous = rendezvous(&server, &secret, Way::Tcp);
    let file = |rank: u32| {
        let file = tempfile::tempfile().expect("a file");
        std::os::unix::fs::FileExt::write_all_at(&file, &[rank as u8 + 1], 0).expect("written");
        rustix::fd::OwnedFd::from(file)
    };
    thread::scope(|scope| {
        let rank = |rank: u32| {
            let rendezvous = &rendezvous;
            move || {
                let hello = Hello { arena: true, ..hello(rank, 2, 10_000) };
                let joined = Connection::join(rendezvous, &hello, Some(&file(rank))).expect("on this host");
                let bytes = joined.arenas.into_iter().map(|fd| {
                    let mut byte = [0];
                    std::os::unix::fs::FileExt::read_exact_at(&std::fs::File::from(fd), &mut byte, 0)
                        .expect("open");
                    byte[0]
                });
                assert_eq!(bytes.collect::<Vec<_>>(), [1, 2]);
            }
        };
        scope.spawn(rank(0));
        scope.spawn(rank(1));
    });
    assert_eq!(server.rejections().ranks, 0);
}
