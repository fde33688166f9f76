//! Tests of ranks that learn of a death while they wait for others at another rank's rendezvous.

use super::{SECOND, Way, hello, join, open, rendezvous, run_three};
use crate::{
    ConnectSpec, Connection, Secret, Server, ServerSpec,
    connect::{Deaths, RendezvousHost},
    error::Error,
};
use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};
use topology::Rank;

/// Notice of the death of rank 2, which arrives after some time.
#[derive(Debug)]
struct Notice {
    after: Duration,
    began: Instant,
}

impl Deaths for Notice {
    fn first(&self) -> Option<(u32, String)> {
        (self.began.elapsed() >= self.after).then(|| (2, "was killed".to_owned()))
    }
}

/// Returns a rendezvous of rank 0, with a notice of a death.
fn of_rank_0(rendezvous: &ConnectSpec, after: Duration) -> ConnectSpec {
    let labels = ["0", "1", "2"].map(str::to_owned);
    let notice = Notice { after, began: Instant::now() };
    let host = RendezvousHost::new(0, labels).with_deaths(Arc::new(notice));
    ConnectSpec { rendezvous_host: Some(host), ..rendezvous.clone() }
}

/// Checks that the error of a rank names rank 2.
fn check_names_the_dead(rank: u32, at: &ConnectSpec) {
    let mut hello = hello(rank, 3, 10_000);
    hello.member.hosts_rendezvous = rank == 0;
    let error = Connection::join(at, &hello, None).expect_err("rank 2 never comes");
    let Error::Absent { ranks, why } = &error else { panic!("{error:?}") };
    assert!(ranks[..] == [Rank(2)] && why.contains("rank 2 was killed"), "rank {rank}: {error:?}");
}

#[test]
fn a_rank_that_gives_up_for_a_death_is_not_taken_for_the_dead_one() {
    let (server, secret) = open(3);
    let at = rendezvous(&server, &secret, Way::Unix);
    thread::scope(|scope| {
        // Rank 1 learns of the death later than the server does of the end of rank 0's connection.
        scope.spawn(|| check_names_the_dead(1, &of_rank_0(&at, SECOND * 3 / 5)));
        scope.spawn(|| {
            thread::sleep(SECOND / 10);
            check_names_the_dead(0, &of_rank_0(&at, SECOND / 10));
        });
    });
}

/// The other rank, without a notice for as long as it waits for one, named the first, which lived.
#[test]
fn a_rank_that_has_no_notice_of_a_death_is_told_of_it_by_one_that_has() {
    for first in [0, 1] {
        let (server, secret) = open(3);
        let at = rendezvous(&server, &secret, Way::Unix);
        thread::scope(|scope| {
            scope.spawn(|| check_names_the_dead(1 - first, &of_rank_0(&at, SECOND * 60)));
            scope.spawn(|| check_names_the_dead(first, &of_rank_0(&at, SECOND / 5)));
        });
    }
}

#[test]
fn a_rendezvous_that_has_ended_for_a_death_is_not_taken_for_the_dead_one() {
    let (server, secret) = open(3);
    let at = rendezvous(&server, &secret, Way::Unix);
    thread::scope(|scope| {
        let ranks = [0, 1].map(|rank| {
            let at = of_rank_0(&at, SECOND / 2);
            scope.spawn(move || check_names_the_dead(rank, &at))
        });
        thread::sleep(SECOND / 5);
        drop(server);
        for rank in ranks {
            rank.join().expect("no panic");
        }
    });
    // Also for a rank that comes when it has ended.
    check_names_the_dead(1, &of_rank_0(&at, SECOND / 5));
}

/// The call takes the notice. A shrink that did not leave the dead rank out waited until its time limit.
#[test]
fn a_death_that_a_call_has_failed_for_is_known_to_later_rendezvous() {
    run_three(Way::Unix, 10_000, |rank, mut connection| {
        if rank == 2 {
            return;
        }
        let taken = connection.notice(SECOND * 5);
        assert!(matches!(taken, Some(crate::Notice::Died { rank: 2, .. })), "{taken:?}");
        let labels = ["1", "2"].map(str::to_owned);
        let later = connection.death_watch([1, 2]).added_to(RendezvousHost::new(0, labels));
        let death = later.first_death().expect("rank 2 is rank 1 of the later job");
        assert_eq!(death.0, 1, "{death:?}");
        connection.goodbye(Vec::new());
    });
}

/// Kills the connection of rank 2, and returns what rank 0 hears of it and after what time. Calls `report`
/// after 300 ms.
fn heard_of_a_death(report: impl FnOnce(&Server) + Send) -> (String, Duration) {
    let secret = Secret::generate().expect("random numbers");
    let listen = vec![([127, 0, 0, 1], 0).into()];
    let spec = ServerSpec::network(3, listen, secret.clone()).with_exit_reports();
    let server = Server::start(&spec).expect("a socket");
    let at = rendezvous(&server, &secret, Way::Unix);
    thread::scope(|scope| {
        let ranks = [0, 1, 2].map(|rank| {
            let at = &at;
            scope.spawn(move || join(at, &hello(rank, 3, 10_000)).expect("all join"))
        });
        let [mut first, second, third] = ranks.map(|rank| rank.join().expect("no panic"));
        let lost = Instant::now();
        drop(third);
        thread::sleep(SECOND * 3 / 10);
        report(&server);
        let notice = first.notice(SECOND * 5);
        let Some(crate::Notice::Died { rank: 2, how }) = notice else { panic!("{notice:?}") };
        drop(second);
        (how, lost.elapsed())
    })
}

/// On a busy machine the report came after the others had been told that the rank ended without a goodbye.
#[test]
fn a_closed_connection_waits_for_the_launcher_s_report() {
    let (how, _) = heard_of_a_death(|server| server.report_exit(2, 7, "was killed by SIGKILL"));
    assert_eq!(how, "was killed by SIGKILL");
}

#[test]
fn a_closed_connection_of_a_process_that_ended_with_status_0_waits_for_no_other_report() {
    let (how, after) = heard_of_a_death(|server| server.report_success(2, 7));
    assert!(how.contains("without a goodbye") && after < SECOND * 9 / 10, "{how}, {after:?}");
}

#[test]
fn a_closed_connection_without_a_report_is_a_death_within_a_second() {
    let (how, after) = heard_of_a_death(|_| ());
    assert!(how.contains("without a goodbye") && after < SECOND * 2, "{how}, {after:?}");
    assert!(after > SECOND / 2, "the report could have come: {after:?}");
}
