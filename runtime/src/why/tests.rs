//! One picture for each kind of knot; each test asserts the sentence.

use super::*;
use bootstrap::{JobMembers, Presence, ProcessState};

/// A job of processes on host `a`, whose process ids are 100 + rank.
struct Job {
    /// Status of each rank; `None` for one that does not answer.
    ranks: Vec<Vec<CommunicatorStatus>>,
    absent: Vec<(usize, Presence)>,
    joining: Vec<(usize, JoinStatus)>,
    pauses: Vec<(usize, PauseStatus)>,
}

/// Number of the world's communicator.
const WORLD: u64 = 7;

fn communicator(id: u64, rank: usize, size: usize, entered: u64) -> CommunicatorStatus {
    CommunicatorStatus {
        id,
        rank: rank as u32,
        size: size as u32,
        transport: "tcp".into(),
        age: 60.0 - id as f64,
        entered,
        made_by: if id == WORLD { String::new() } else { format!("split {id} of color 0") },
        past: (entered > 0).then(|| past(entered, 8.2)).into_iter().collect(),
        ..CommunicatorStatus::default()
    }
}

fn past(number: u64, seconds: f64) -> PastCall {
    PastCall {
        text: "barrier".into(),
        name: "barrier".into(),
        number,
        digest: number * 1000,
        kind: Kind::Collective,
        seconds,
        is_done: true,
    }
}

/// Returns a collective that waits for a rank.
fn collective(name: &str, number: u64, peer: impl Into<Option<u32>>, waited: f64) -> CallStatus {
    CallStatus {
        text: format!("{name} of 1024 f32"),
        name: name.into(),
        number,
        digest: number * 1000,
        kind: Kind::Collective,
        seconds: waited,
        wait: Some(Wait { seconds: waited, peer: peer.into(), step: "step 1".into(), ..Wait::default() }),
        ..CallStatus::default()
    }
}

fn message(kind: Kind, peer: u32, waited: f64) -> CallStatus {
    let name =
        if kind == Kind::Send { format!("send to rank {peer}") } else { format!("recv from rank {peer}") };
    let sends = kind == Kind::Send;
    CallStatus {
        name,
        kind,
        peer: Some(peer),
        number: 1,
        digest: 5,
        wait: Some(Wait { seconds: waited, peer: Some(peer), sends, ..Wait::default() }),
        ..collective("", 1, None, waited)
    }
}

impl Job {
    /// Returns a job whose ranks have made 16 collectives.
    fn new(ranks: usize) -> Job {
        let ranks = (0..ranks).map(|rank| vec![communicator(WORLD, rank, ranks, 16)]).collect();
        Job { ranks, absent: Vec::new(), joining: Vec::new(), pauses: Vec::new() }
    }

    /// Puts a rank into a call of the world.
    fn call(mut self, rank: usize, call: CallStatus) -> Job {
        let world = &mut self.ranks[rank][0];
        if call.kind == Kind::Collective {
            world.entered = call.number;
        }
        world.call = Some(call);
        self
    }

    /// Adds a communicator of some ranks, which have made `entered` collectives there.
    fn split(mut self, id: u64, members: &[usize], entered: u64) -> Job {
        for (new, old) in members.iter().enumerate() {
            let mut part = communicator(id, new, members.len(), entered);
            part.members = members.iter().map(|old| (100 + *old as u32, "a".into())).collect();
            self.ranks[*old].push(part);
        }
        self
    }

    /// Puts a rank of the world into a call of its latest communicator.
    fn call_there(mut self, rank: usize, call: CallStatus) -> Job {
        let part = self.ranks[rank].last_mut().expect("it has one");
        part.entered = call.number;
        part.call = Some(call);
        self
    }

    fn absent(mut self, rank: usize, presence: Presence) -> Job {
        self.absent.push((rank, presence));
        self
    }

    fn report(&self) -> Report {
        let size = self.ranks.len() as u32;
        let ranks = (0..size).map(|rank| (rank, 100 + rank, "a".to_owned())).collect();
        let members = JobMembers { id: WORLD, job: String::new(), size, rendezvous_pid: 99, ranks };
        let presence = |rank: usize| {
            let absent = self.absent.iter().find(|(of, _)| *of == rank).map(|(_, presence)| presence.clone());
            let joining = self.joining.iter().filter(|(of, _)| *of == rank).map(|(_, join)| join.clone());
            let status = ProcessStatus {
                host: "a".into(),
                pid: 100 + rank as u32,
                communicators: self.ranks[rank].clone(),
                joining: joining.collect(),
                pause: self.pauses.iter().find(|(of, _)| *of == rank).map(|(_, pause)| *pause),
                metrics: Vec::new(),
            };
            absent.unwrap_or(Presence::Answered(serde_json::to_string(&status).expect("a status")))
        };
        let ranks = (0..self.ranks.len()).map(presence).collect();
        Report::new(&[Snapshot { members, ranks }], &[], 0.5)
    }

    fn assert(&self, kind: KnotKind, sentence: &str) -> Report {
        let report = self.report();
        assert_eq!((report.knot.kind, report.knot.sentence.as_str()), (kind, sentence), "{report}");
        report
    }
}

/// Returns a job whose ranks but some wait in an all_reduce for the next one, in a ring.
fn ring_without(size: usize, missing: &[usize]) -> Job {
    let waiting = (0..size).filter(|rank| !missing.contains(rank));
    waiting.fold(Job::new(size), |job, rank| {
        let peer = ((rank + 1) % size) as u32;
        job.call(rank, collective("all_reduce", 17, peer, 8.0 - rank as f64 / 100.0))
    })
}

#[test]
fn a_rank_that_computes_has_never_called() {
    let report = ring_without(4, &[2]).assert(
        KnotKind::NeverCalled,
        "rank 2 never called all_reduce number 17: it has been outside tbccl for 8.2 s, after barrier \
         number 16",
    );
    assert_eq!(report.knot.processes, [(102, "a".to_owned())]);
    ring_without(5, &[2, 3]).assert(
        KnotKind::NeverCalled,
        "rank 2 and rank 3 never called all_reduce number 17: rank 2 has been outside tbccl for 8.2 s, after \
         barrier number 16",
    );
}

#[test]
fn a_rank_that_is_in_a_call_of_another_communicator_has_never_called() {
    // Rank 2 is at work there and does not wait.
    let busy = CallStatus { wait: None, ..collective("barrier", 3, None, 4.0) };
    let job = ring_without(3, &[2]).split(9, &[2], 2).call_there(2, busy);
    job.assert(
        KnotKind::NeverCalled,
        "rank 2 never called all_reduce number 17 of communicator 0: it has been in barrier number 3 of \
         communicator 1 for 4.0 s",
    );
    // Rank 2 waits there for rank 0, which waits for rank 2.
    let job = Job::new(3).split(9, &[0, 2], 2);
    let job = job.call(0, collective("all_reduce", 17, 2, 5.0));
    let job = job.call(1, collective("all_reduce", 17, 2, 5.0));
    job.call_there(2, collective("barrier", 3, 0, 4.0)).assert(
        KnotKind::Cycle,
        "rank 0 and rank 2 wait for each other: rank 0 in all_reduce number 17 of communicator 0 for rank 2, \
         rank 2 in barrier number 3 of communicator 1 for rank 0; all ranks must make the calls of these \
         communicators in the same order",
    );
}

/// Rank 3 of the job is another rank of the communicator of the call, whose error has this sentence.
#[test]
fn the_last_of_several_ranks_that_wait_for_each_other_is_the_cause() {
    // Ranks 0 and 1 wait for rank 2, which waits in another communicator for rank 3, which computes.
    let job = ring_without(4, &[2, 3]).split(9, &[2, 3], 2).call_there(2, collective("barrier", 3, 1, 6.0));
    job.assert(
        KnotKind::NeverCalled,
        "rank 3 (process 103 on a) never called barrier number 3 of communicator 1: it has been outside \
         tbccl for 8.2 s, after barrier number 16 of communicator 0",
    );
}

#[test]
fn a_stopped_process_is_named_with_its_state() {
    let job = ring_without(4, &[1]).absent(1, Presence::Silent(ProcessState::Stopped));
    job.assert(
        KnotKind::Silent,
        "rank 1 (process 101 on a) is stopped (state T; `kill -CONT 101` there continues it); rank 0 waits \
         for it in all_reduce number 17, and 2 more ranks wait",
    );
    let job = ring_without(2, &[1]).absent(1, Presence::Silent(ProcessState::Unknown));
    job.assert(
        KnotKind::Silent,
        "rank 1 (process 101 on a) did not answer: it is stopped, or its host is gone; rank 0 waits for it \
         in all_reduce number 17",
    );
    Job::new(2).absent(1, Presence::Silent(ProcessState::Stopped)).assert(
        KnotKind::Silent,
        "rank 1 (process 101 on a) is stopped (state T; `kill -CONT 101` there continues it); no rank waits \
         for it",
    );
}

#[test]
fn a_rank_that_has_died_or_left_is_named() {
    let job = ring_without(3, &[1]).absent(1, Presence::Died("was killed by SIGKILL".into()));
    job.assert(
        KnotKind::Gone,
        "rank 1 (process 101 on a) was killed by SIGKILL; rank 0 waits for it in all_reduce number 17, and 1 \
         more rank waits",
    );
    let mut job = ring_without(2, &[1]);
    job.ranks[1].clear();
    job.assert(
        KnotKind::Gone,
        "rank 1 (process 101 on a) has closed the communicator; rank 0 waits for it in all_reduce number 17",
    );
}

#[test]
fn calls_that_differ_under_one_number_are_shown() {
    let other =
        CallStatus { digest: 3, text: "broadcast of 5 u8".into(), ..collective("broadcast", 17, 0, 2.0) };
    let job = Job::new(2).call(0, collective("all_reduce", 17, 1, 3.0)).call(1, other);
    job.assert(
        KnotKind::Mismatch,
        "the ranks disagree on call 17: rank 0 called all_reduce of 1024 f32, rank 1 called broadcast of \
         5 u8",
    );
    // One of them is in a later call.
    let mut job = Job::new(2).call(0, collective("all_reduce", 17, 1, 3.0));
    job.ranks[1][0].entered = 18;
    job.ranks[1][0].past = vec![PastCall { digest: 3, ..past(17, 1.0) }];
    job.assert(
        KnotKind::Mismatch,
        "the ranks disagree on call 17: rank 0 called all_reduce of 1024 f32, rank 1 called barrier",
    );
}

#[test]
fn sends_in_a_circle_are_a_cycle() {
    let job = (0..3).fold(Job::new(3), |job, rank| {
        job.call(rank as usize, message(Kind::Send, (rank + 1) % 3, 9.0 - f64::from(rank)))
    });
    job.assert(
        KnotKind::Cycle,
        "rank 0, rank 1 and rank 2 wait for each other: rank 0 in send number 1 to rank 1, rank 1 in \
         send number 1 to rank 2, rank 2 in send number 1 to rank 0; a send that is too large for the \
         buffers waits for its receive",
    );
    let job = Job::new(2).call(0, message(Kind::Recv, 1, 9.0)).call(1, collective("barrier", 17, 0, 5.0));
    job.assert(
        KnotKind::Cycle,
        "rank 0 and rank 1 wait for each other: rank 0 in recv number 1 from rank 1, rank 1 in \
         barrier number 17 for rank 0",
    );
}

#[test]
fn a_message_that_the_other_rank_does_not_send_or_take_is_told() {
    let job = Job::new(2).call(0, message(Kind::Recv, 1, 9.0));
    job.assert(
        KnotKind::NeverCalled,
        "rank 1 does not send the message for which rank 0 waits in recv number 1 from rank 1: it has been \
         outside tbccl for 8.2 s, after barrier number 16",
    );
    Job::new(2).call(0, message(Kind::Send, 1, 9.0)).assert(
        KnotKind::NeverCalled,
        "rank 1 does not receive the message that rank 0 sends in send number 1 to rank 1: it has been \
         outside tbccl for 8.2 s, after barrier number 16",
    );
    let any = CallStatus { peer: None, name: "recv from any rank".into(), ..message(Kind::Recv, 0, 9.0) };
    let any = CallStatus { wait: any.wait.map(|wait| Wait { peer: None, ..wait }), ..any };
    Job::new(2).call(0, any.clone()).assert(
        KnotKind::AnySource,
        "rank 0 has waited in recv number 1 from any rank for 9.0 s, and no rank sends: rank 1 has been \
         outside tbccl for 8.2 s, after barrier number 16",
    );
    let other = |job: Job| job.call(0, any.clone()).call(1, any.clone());
    other(Job::new(2)).assert(
        KnotKind::AnySource,
        "rank 0 has waited in recv number 1 from any rank for 9.0 s, and no rank sends",
    );
    // It was stopped meanwhile, and its message may be on its way.
    let late = CallStatus { wait: any.wait.clone().map(|wait| Wait { seconds: 0.1, ..wait }), ..any.clone() };
    Job::new(2).call(0, any.clone()).call(1, late).assert(
        KnotKind::AnySource,
        "rank 0 has waited in recv number 1 from any rank for 9.0 s, and no rank sends: the last to begin \
         its call was rank 1, 0.1 s ago",
    );
    let late = CallStatus { wait: any.wait.clone().map(|wait| Wait { seconds: 0.1, ..wait }), ..any.clone() };
    Job::new(3).call(0, any.clone()).call(1, late).assert(
        KnotKind::AnySource,
        "rank 0 has waited in recv number 1 from any rank for 9.0 s, and no rank sends: rank 2 has been \
         outside tbccl for 8.2 s, after barrier number 16; the last to begin its call was rank 1, 0.1 s ago",
    );
    // It has sent, was stopped, and is in a later call, while its message is repeated.
    let later = collective("barrier", 17, 0, 0.0);
    Job::new(2).split(9, &[0, 1], 3).call_there(0, any.clone()).call(1, later).assert(
        KnotKind::AnySource,
        "rank 0 has waited in recv number 1 from any rank of communicator 1 for 9.0 s, and no rank sends: \
         the last to begin its call was rank 1, 0.0 s ago",
    );
    // It may be the one that was about to send.
    other(Job::new(3).absent(2, Presence::Silent(ProcessState::Stopped))).assert(
        KnotKind::Silent,
        "rank 2 (process 102 on a) is stopped (state T; `kill -CONT 102` there continues it); rank 0 waits \
         for it in recv number 1 from any rank, and 1 more rank waits",
    );
    other(Job::new(3).absent(2, Presence::Left)).assert(
        KnotKind::Gone,
        "rank 2 (process 102 on a) has closed the communicator; rank 0 waits for it in recv number 1 from \
         any rank, and 1 more rank waits",
    );
}

/// Each rank tells of one wait, although one of them waits for rank 2 as well.
#[test]
fn ranks_that_wait_for_each_other_in_a_call_in_which_another_one_is_stopped_wait_for_that_one() {
    let job = Job::new(3).call(0, collective("all_reduce", 17, 1, 9.0));
    let job = job.call(1, collective("all_reduce", 17, 0, 9.0));
    job.absent(2, Presence::Silent(ProcessState::Stopped)).assert(
        KnotKind::Silent,
        "rank 2 (process 102 on a) is stopped (state T; `kill -CONT 102` there continues it); rank 0 waits \
         for it in all_reduce number 17, and 1 more rank waits",
    );
}

/// Rank 1 has not made the call, because it waits for rank 2 to join.
#[test]
fn a_rank_that_waits_for_a_stopped_one_to_join_is_not_to_blame() {
    let mut job = Job::new(3).call(0, collective("all_reduce", 17, 1, 9.0));
    job.joining.push((1, JoinStatus { made_by: "split 7 of color 0".into(), seconds: 9.0 }));
    job.absent(2, Presence::Silent(ProcessState::Stopped)).assert(
        KnotKind::Silent,
        "rank 2 (process 102 on a) is stopped (state T; `kill -CONT 102` there continues it); rank 0 waits \
         for it in all_reduce number 17",
    );
}

/// Each rank tells of one wait, although both wait for rank 2 as well.
#[test]
fn ranks_that_wait_for_each_other_in_a_call_that_another_one_never_made_wait_for_that_one() {
    let job = Job::new(3).call(0, collective("all_reduce", 17, 1, 9.0));
    job.call(1, collective("all_reduce", 17, 0, 8.0)).assert(
        KnotKind::NeverCalled,
        "rank 2 never called all_reduce number 17: it has been outside tbccl for 8.2 s, after barrier \
         number 16",
    );
}

#[test]
fn a_message_between_ranks_in_the_same_call_does_not_arrive() {
    ring_without(3, &[]).assert(
        KnotKind::Undelivered,
        "no message gets from rank 1 to rank 0 (over tcp): rank 0 waits in all_reduce number 17",
    );
    // The rank with a rail that is down, although another one has waited for longer.
    let mut job = ring_without(3, &[]);
    let wait = job.ranks[1][0].call.as_mut().and_then(|call| call.wait.as_mut()).expect("it waits");
    wait.rails = vec![RailStatus { ours: "en2".into(), theirs: "en5".into(), is_up: false }];
    job.assert(
        KnotKind::Undelivered,
        "no message gets from rank 2 to rank 1 (the rail en2 to en5 is down): rank 1 waits in all_reduce \
         number 17",
    );
    // The other rank has finished the call.
    let mut job = Job::new(2).call(0, collective("all_reduce", 17, 1, 3.0));
    job.ranks[1][0].entered = 17;
    job.ranks[1][0].past = vec![past(17, 3.0)];
    job.assert(
        KnotKind::Undelivered,
        "no message gets from rank 1 to rank 0 (over tcp): rank 0 waits in all_reduce number 17",
    );
    let job = Job::new(2).call(0, message(Kind::Recv, 1, 9.0)).call(1, message(Kind::Send, 0, 9.0));
    job.assert(
        KnotKind::Undelivered,
        "no message gets from rank 1 to rank 0 (over tcp): rank 0 waits in recv number 1 from rank 1",
    );
}

#[test]
fn a_rank_at_work_in_the_call_is_named() {
    let busy = CallStatus { wait: None, ..collective("all_reduce", 17, None, 9.0) };
    ring_without(3, &[2])
        .call(2, busy)
        .assert(KnotKind::Busy, "rank 2 is at work in all_reduce number 17, and does not wait; 2 ranks wait");
}

/// `tbccl chaos --seed 116 --round 97 --transport shm+tcp`: the rank that waited for the stopped one got no
/// core.
#[test]
fn a_stopped_rank_is_named_although_the_one_that_waits_for_it_does_not_say_so() {
    let busy = CallStatus { wait: None, ..collective("all_reduce", 17, None, 9.0) };
    ring_without(4, &[2, 3]).call(2, busy).absent(3, Presence::Silent(ProcessState::Stopped)).assert(
        KnotKind::Silent,
        "rank 3 (process 103 on a) is stopped (state T; `kill -CONT 103` there continues it); rank 2 is at \
         work in all_reduce number 17, and does not wait; 2 ranks wait",
    );
}

/// `tbccl chaos --seed 108 --round 147 --transport shm`: the stopped rank went on just as the limit passed.
#[test]
fn a_rank_that_was_stopped_until_now_is_named_before_the_message_that_does_not_arrive() {
    let job = || {
        let job = Job::new(3).call(0, collective("all_reduce", 17, 1, 5.0));
        job.call(1, collective("all_reduce", 17, 0, 4.9)).call(2, collective("all_reduce", 17, 0, 0.1))
    };
    let undelivered =
        "no message gets from rank 1 to rank 0 (over tcp): rank 0 waits in all_reduce number 17";
    job().assert(KnotKind::Undelivered, undelivered);
    let pause = PauseStatus { seconds: 4.8, ended: 0.1 };
    let short = PauseStatus { seconds: 1.2, ended: 2.0 };
    let paused = Job { pauses: vec![(0, short), (2, pause)], ..job() };
    let report = paused.assert(
        KnotKind::Paused,
        &format!("rank 2 (process 102 on a) did not run for 4.8 s, until 0.1 s ago; {undelivered}"),
    );
    assert_eq!(report.knot.processes[0], (102, "a".to_owned()));
    // A pause before the wait has delayed nobody.
    let before = PauseStatus { ended: 5.5, ..pause };
    Job { pauses: vec![(2, before)], ..job() }.assert(KnotKind::Undelivered, undelivered);
}

/// The process that is named there is the cause for certain.
#[test]
fn a_pause_does_not_come_before_a_rank_that_is_stopped_now() {
    let pause = PauseStatus { seconds: 2.0, ended: 0.1 };
    let job = ring_without(3, &[2]).absent(2, Presence::Silent(ProcessState::Stopped));
    let knot = Job { pauses: vec![(0, pause)], ..job }.report().knot;
    assert_eq!((knot.kind, knot.processes), (KnotKind::Silent, vec![(102, "a".to_owned())]));
}

#[test]
fn a_job_without_long_waits_has_no_knot() {
    Job::new(2).assert(
        KnotKind::NoWait,
        "no rank waits for another one; rank 1 has been outside tbccl for the longest time, 8.2 s",
    );
    let busy = CallStatus { wait: None, ..collective("all_reduce", 17, None, 9.0) };
    let job = Job::new(2).call(0, busy);
    job.assert(KnotKind::NoWait, "no rank waits for another one; 1 rank is at work in calls");
    let job = Job::new(2).call(0, collective("all_reduce", 17, 1, 0.2));
    job.assert(KnotKind::NoWait, "no rank has waited for longer than 0.2 s: the job moves");
}

#[test]
fn ranks_that_have_not_joined_are_named() {
    let job = Job::new(3).absent(0, Presence::Starting).absent(1, Presence::Starting);
    job.absent(2, Presence::NotJoined)
        .assert(KnotKind::NotJoined, "rank 2 has not joined the job; 2 ranks have");
    let mut job = Job::new(3);
    let split = JoinStatus { made_by: "split 3 of color 0".into(), seconds: 7.0 };
    job.joining = vec![(0, split.clone()), (2, split)];
    job.assert(
        KnotKind::NotJoined,
        "rank 0 and rank 2 have waited for 7.0 s for other ranks to join split 3 of color 0; rank 1 has been \
         outside tbccl for 8.2 s, after barrier number 16",
    );
    job.joining.truncate(1);
    job.call(1, collective("all_reduce", 17, 0, 6.0)).assert(
        KnotKind::NeverCalled,
        "rank 0 and rank 2 never called all_reduce number 17: rank 0 has waited for 7.0 s for other ranks \
         to join split 3 of color 0",
    );
}

#[test]
fn a_rank_whose_communicator_has_failed_is_named() {
    let mut job = ring_without(2, &[1]);
    job.ranks[1][0].error = Some("no memory".into());
    job.assert(KnotKind::Failed, "a call has failed on rank 1: no memory");
}

#[test]
fn a_rank_that_gets_no_answer_of_the_rendezvous_says_so() {
    let members = [0, 1].map(|rank| (100 + rank, "a".to_owned())).to_vec();
    let call = Some(collective("barrier", 5, 1, 2.0));
    let world = CommunicatorStatus { members, call, ..communicator(WORLD, 0, 2, 5) };
    let own =
        ProcessStatus { host: "a".into(), pid: 100, communicators: vec![world], ..ProcessStatus::default() };
    let report = Report::new(&[], &[own], 0.0);
    let sentence = "the rendezvous does not answer, so nothing is known of rank 1 (process 101 on a); rank 0 \
                    waits for it in barrier number 5";
    assert_eq!((report.knot.kind, report.knot.sentence.as_str()), (KnotKind::Unknown, sentence), "{report}");
}

/// `tbccl chaos --seed 108 --round 147 --transport shm`: the stopped rank had the rendezvous.
#[test]
fn a_stopped_rank_is_named_although_the_rendezvous_is_silent() {
    let members = [0, 1, 2].map(|rank| (100 + rank, "a".to_owned())).to_vec();
    let call = Some(collective("barrier", 5, 1, 2.0));
    let world = CommunicatorStatus { members, call, ..communicator(WORLD, 0, 3, 5) };
    let own =
        ProcessStatus { host: "a".into(), pid: 100, communicators: vec![world], ..ProcessStatus::default() };
    let state_of = |host: &str, pid: u32| match (host, pid) {
        ("a", 101) => ProcessState::Alive,
        ("a", 102) => ProcessState::Stopped,
        _ => ProcessState::Unknown,
    };
    let report = Report::with_states(&[], &[own], 0.0, &state_of);
    let sentence = "rank 2 (process 102 on a) is stopped (state T; `kill -CONT 102` there continues it); the \
                    rendezvous does not answer, so nothing is known of rank 1 (process 101 on a); rank 0 \
                    waits for it in barrier number 5";
    assert_eq!((report.knot.kind, report.knot.sentence.as_str()), (KnotKind::Silent, sentence), "{report}");
}

#[test]
fn ranks_that_are_threads_are_nodes_of_their_own() {
    let thread =
        |rank: usize, call| CommunicatorStatus { place: rank as u64, call, ..communicator(3, rank, 2, 4) };
    let own = ProcessStatus {
        host: "a".into(),
        pid: 1,
        communicators: vec![thread(0, Some(collective("barrier", 5, 1, 2.0))), thread(1, None)],
        ..ProcessStatus::default()
    };
    let report = Report::new(&[], &[own], 0.0);
    let sentence =
        "rank 1 never called barrier number 5: it has been outside tbccl for 8.2 s, after barrier number 4";
    assert_eq!(report.knot.sentence, sentence);
}

#[test]
fn the_table_has_a_row_for_each_rank_in_order() {
    let job = ring_without(3, &[1]).split(9, &[1, 2], 0).absent(1, Presence::Silent(ProcessState::Stopped));
    let text = job.report().to_string();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("rank 1 (process 101 on a) is stopped"), "{text}");
    assert_eq!(lines[1].split_whitespace().take(2).collect::<Vec<_>>(), ["rank", "process"], "{text}");
    for (line, begin) in lines[2..].iter().zip(["rank 0  100 on a", "rank 1  101 on a", "rank 2  102 on a"]) {
        assert!(line.starts_with(begin), "{text}");
    }
    assert!(lines[2].contains("all_reduce number 17 of communicator 0 (1024 f32)"), "{text}");
    assert!(lines[2].contains("rank 1 (step 1), for 8.0 s"), "{text}");
    assert!(lines[3].contains("stopped (state T)"), "{text}");
    assert_eq!(lines.last().copied(), Some("communicator 1: split 9 of color 0, 2 ranks, tcp"), "{text}");
    let json = serde_json::to_value(job.report()).expect("JSON");
    assert_eq!((&json["knot"]["kind"], &json["ranks"][0]["waits_for"]), (&"silent".into(), &"rank 1".into()));
}

#[test]
fn a_thousand_ranks_are_judged_in_a_moment() {
    let began = std::time::Instant::now();
    let report = ring_without(1000, &[500]).report();
    assert!(report.knot.sentence.starts_with("rank 500 never called"), "{}", report.knot);
    assert!(began.elapsed().as_secs() < 2, "{:?}", began.elapsed());
}
