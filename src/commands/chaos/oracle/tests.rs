//! Tests of the oracle, on rounds with faults and reports made by hand.

use super::{
    super::{
        account::Report,
        fault::Kind,
        plan::{GroupPlan, Step, Wishes},
        settings::{FabricChoice, Setting},
    },
    *,
};
use tbccl::Transport;

const LIMIT: Duration = Duration::from_secs(3);
const SECOND: u64 = 1_000_000;

/// Returns a round of three ranks without a fault. It begins with a call on the world, since an error may
/// come later or name others where the step makes a group, and it has a split.
fn quiet_round() -> Round {
    let setting = Setting { transport: Transport::Shm, fabric: None };
    let wishes = Wishes { settings: vec![setting], faults: Vec::new(), timeout: LIMIT };
    let is_wanted = |round: &Round| {
        let begins_with_a_call = round.steps[0].group == 0 && matches!(round.steps[0].work, Work::Call(_));
        let has_a_split = round.steps.iter().any(is_split);
        round.ranks == 3 && round.newcomers == 0 && begins_with_a_call && has_a_split
    };
    let mut rounds = (0..10_000).map(|number| Round::new(1, number, &wishes));
    let mut round = rounds.find(is_wanted).expect("there are many");
    round.faults.clear();
    round
}

fn is_split(step: &Step) -> bool {
    matches!(step.work, Work::Tag { .. } | Work::Split { .. })
}

/// Returns a round with a fault of a rank at its first step on the world.
fn round_with(kind: Kind, rank: u32) -> Round {
    let mut round = quiet_round();
    let wishes = |number| Wishes {
        settings: vec![Setting { transport: Transport::Shm, fabric: None }],
        faults: vec![kind],
        timeout: LIMIT + Duration::from_millis(number),
    };
    let found = (0..100).map(|number| Round::new(2, number as u32, &wishes(number)));
    let mut fault = found.filter_map(|round| round.faults.first().cloned()).next().expect("it is possible");
    (fault.rank, fault.step) = (rank, 0);
    round.faults.push(fault);
    round
}

/// Returns the reports of processes that have passed all steps.
fn accounts(round: &Round) -> Vec<Account> {
    let well = |pid: u32| {
        let mut account = Account::default();
        for report in [
            Report::Started { pid: 1000 + pid },
            Report::Step { step: round.steps.len() - 1, at: 2 * SECOND },
            Report::Finished { at: 20 * SECOND },
            Report::Next { took: 5, error: None },
            Report::Closed { residue: Vec::new() },
        ] {
            account.add(report);
        }
        account
    };
    (0..round.processes()).map(well).collect()
}

fn failed(step: Option<usize>, at: u64, took: u64, text: &str) -> Failed {
    Failed { step, at, took, kind: "Timeout".to_owned(), text: text.to_owned() }
}

fn judged(round: &Round, accounts: &[Account], injected: &[Option<u64>]) -> Verdict {
    let ends = vec![End::Ended; accounts.len()];
    judge(&Observation { round, accounts, injected, effective: injected, ends: &ends, leftovers: &[] })
}

/// Asserts that there is one violation, with this text.
fn assert_violates(verdict: &Verdict, text: &str) {
    assert!(verdict.violations.len() == 1 && verdict.violations[0].text.contains(text), "{verdict:?}");
}

#[test]
fn a_round_without_errors_is_right() {
    let round = quiet_round();
    assert_eq!(judged(&round, &accounts(&round), &[]), Verdict::default());
}

#[test]
fn a_wrong_result_has_no_excuse() {
    let round = round_with(Kind::Kill, 1);
    let mut accounts = accounts(&round);
    accounts[1].wrong.push("element 3".to_owned());
    assert_violates(&judged(&round, &accounts, &[Some(SECOND)]), "wrong result: element 3");
}

/// The launcher's end ended the child before its parent.
#[test]
fn a_forked_child_may_end_with_the_job_and_not_otherwise() {
    for (kind, is_excused) in [(Kind::Launcher, true), (Kind::Pause, false)] {
        let round = round_with(kind, 0);
        let mut accounts = accounts(&round);
        accounts[1].wrong.push(format!("{CHILD_ENDED} 15"));
        let verdict = judged(&round, &accounts, &[Some(SECOND)]);
        assert_eq!(verdict.violations.is_empty(), is_excused, "{kind:?}: {verdict:?}");
    }
}

/// A split waits for the exchange of colors, and then for the ranks to join.
#[test]
fn a_split_has_the_time_limit_twice() {
    for seconds in [7, 9] {
        let mut round = round_with(Kind::Stop, 1);
        let split = round.steps.iter().position(is_split).expect("the round has one");
        round.faults[0].lasting = Duration::ZERO;
        let mut accounts = accounts(&round);
        let text = "these ranks have not joined in time: 1 (process 1001 on a)";
        accounts[0].failures.push(failed(Some(split), (1 + seconds) * SECOND, seconds * SECOND, text));
        let verdict = judged(&round, &accounts, &[Some(SECOND)]);
        assert_eq!(verdict.violations.is_empty(), seconds == 7, "{seconds} s: {verdict:?}");
    }
}

#[test]
fn an_error_needs_a_fault_that_happened_before() {
    for (injected, is_excused) in [(Some(SECOND), true), (None, false), (Some(3 * SECOND), false)] {
        let round = round_with(Kind::Stop, 1);
        let mut accounts = accounts(&round);
        accounts[0].failures.push(failed(Some(0), 2 * SECOND, SECOND, "rank 1 is outside"));
        let verdict = judged(&round, &accounts, &[injected]);
        assert_eq!(verdict.violations.is_empty(), is_excused, "{verdict:?}");
        if is_excused {
            assert_eq!((verdict.errors, verdict.longest), (1, Duration::from_secs(1)));
        } else {
            assert_violates(&verdict, "without a fault");
        }
    }
}

/// The next communicator may meet a fault that comes when all steps are passed.
#[test]
fn the_next_communicator_may_fail_only_by_a_fault_after_the_last_step() {
    for (kind, injected, is_excused) in
        [(Kind::Stop, 21 * SECOND, true), (Kind::Stop, 19 * SECOND, false), (Kind::Pause, 21 * SECOND, false)]
    {
        let round = round_with(kind, 1);
        let mut accounts = accounts(&round);
        accounts[0].add(Report::Next { took: 5, error: Some("rank 1 is outside".to_owned()) });
        let verdict = judged(&round, &accounts, &[Some(injected)]);
        assert_eq!(verdict.violations.is_empty(), is_excused, "{verdict:?}");
    }
}

/// Ten queue pairs of a device are too few for the connections of the last communicator and of the next one.
#[test]
fn the_next_communicator_may_lack_queue_pairs_of_apples_devices_that_ranks_share() {
    let error =
        "rank 2: d0/1: making a queue pair failed: all queue pairs of the device are taken; end others";
    for (profile, per_node, is_excused) in [("apple-tb5", 2, true), ("apple-tb5", 1, false), ("ib", 2, false)]
    {
        let mut round = round_with(Kind::Stop, 1);
        round.setting.fabric = Some(FabricChoice::Profile(profile));
        round.per_node = per_node;
        let mut accounts = accounts(&round);
        accounts[0].add(Report::Next { took: 5, error: Some(error.to_owned()) });
        let verdict = judged(&round, &accounts, &[Some(SECOND)]);
        assert_eq!(verdict.violations.is_empty(), is_excused, "{verdict:?}");
    }
}

/// `chaos --seed 23 --round 108 --transport shm+verbs --fabric ib`: a rank joined while its port was down.
#[test]
fn a_rank_whose_only_port_is_down_may_say_so_while_a_cable_is_out() {
    let error = "rank 4: no RDMA device can be used: the port is down (d0); plug in the cable";
    for (kind, is_excused) in [(Kind::Port, true), (Kind::Unplug, true), (Kind::Slow, false)] {
        let round = round_with(Kind::Stop, 1);
        let mut round = Round { faults: vec![Fault { kind, ..round.faults[0].clone() }], ..round };
        round.setting.fabric = Some(FabricChoice::Profile("ib"));
        (round.nodes, round.per_node) = (3, 1);
        let mut accounts = accounts(&round);
        accounts[0].failures.push(failed(Some(0), 2 * SECOND, SECOND, error));
        let verdict = judged(&round, &accounts, &[Some(SECOND)]);
        assert_eq!(verdict.violations.is_empty(), is_excused, "{verdict:?}");
    }
}

/// The software device was told of the fault before the first process had finished, and had taken it in
/// after.
#[test]
fn the_next_communicator_may_fail_by_a_fault_that_took_until_after_the_last_step() {
    let round = round_with(Kind::Stop, 1);
    let mut accounts = accounts(&round);
    accounts[0].add(Report::Next { took: 5, error: Some("rank 1 is outside".to_owned()) });
    let ends = vec![End::Ended; accounts.len()];
    for (effective, is_excused) in [(21 * SECOND, true), (19 * SECOND, false)] {
        let (injected, effective) = (&[Some(19 * SECOND)], &[Some(effective)]);
        let (round, accounts, ends) = (&round, &accounts, &ends);
        let verdict = judge(&Observation { round, accounts, injected, effective, ends, leftovers: &[] });
        assert_eq!(verdict.violations.is_empty(), is_excused, "{verdict:?}");
    }
}

/// `chaos --seed 122 --round 414 --transport verbs --fabric ib`: no call polled the completion queue after it
/// had overflowed.
#[test]
fn the_next_communicator_may_be_the_first_to_meet_a_broken_device() {
    let error = "the link to rank 1 failed: the completion queue has overflowed";
    for (kind, has_failed, is_excused) in
        [(Kind::Overflow, false, true), (Kind::Overflow, true, false), (Kind::Stop, false, false)]
    {
        let round = round_with(Kind::Stop, 1);
        let mut round = Round { faults: vec![Fault { kind, ..round.faults[0].clone() }], ..round };
        round.setting.fabric = Some(FabricChoice::Profile("ib"));
        (round.nodes, round.per_node) = (3, 1);
        let mut accounts = accounts(&round);
        if has_failed {
            accounts[0].failures.push(failed(Some(0), 2 * SECOND, SECOND, "the link to rank 1 failed"));
        }
        accounts[0].add(Report::Next { took: 5, error: Some(error.to_owned()) });
        let verdict = judged(&round, &accounts, &[Some(SECOND)]);
        assert_eq!(verdict.violations.is_empty(), is_excused, "{kind:?}: {verdict:?}");
    }
}

#[test]
fn ranks_that_end_with_their_launcher_may_tell_of_its_end() {
    let kinds = [(Kind::Launcher, true), (Kind::Rendezvous, true), (Kind::Reset, true), (Kind::Stop, false)];
    for (kind, is_excused) in kinds {
        let mut round = round_with(Kind::Stop, 1);
        round.faults[0].kind = kind;
        let mut accounts = accounts(&round);
        let step = round.steps.iter().position(|step| step.group == 0);
        let error = failed(step, 2 * SECOND, SECOND, LAUNCHER_GONE);
        accounts[0].failures.push(Failed { kind: "LauncherGone".to_owned(), ..error });
        let repeated = failed(step, 3 * SECOND, SECOND, &format!("rank 0 failed: {LAUNCHER_GONE}"));
        accounts[2].failures.push(Failed { kind: "Remote".to_owned(), ..repeated });
        let joining =
            failed(step, 3 * SECOND, SECOND, &format!("the communicator can't grow: {LAUNCHER_GONE}"));
        accounts[1].failures.push(Failed { kind: "Bootstrap".to_owned(), ..joining });
        let text = format!("waiting for the other ranks: unexpected end of file; {LAUNCHER_ADVICE}");
        let joining = failed(step, 3 * SECOND, SECOND, &text);
        accounts[2].failures.push(Failed { kind: "Bootstrap".to_owned(), ..joining });
        let verdict = judged(&round, &accounts, &[Some(SECOND)]);
        assert_eq!(verdict.violations.is_empty(), is_excused, "{kind:?}: {verdict:?}");
    }
}

#[test]
fn a_group_that_is_made_while_a_cable_is_out_may_lack_it() {
    let setting = Setting::all(&[Transport::Verbs], &["ib"]).remove(0);
    let wishes = Wishes { settings: vec![setting], faults: vec![Kind::Unplug], timeout: LIMIT };
    let grows = |round: &Round| round.steps.iter().any(|step| matches!(step.work, Work::Grow { .. }));
    let round = (0..).map(|number| Round::new(1, number, &wishes)).find(grows).expect("there are many");
    let made = |at: usize| round.groups[round.steps[at].group].made_by;
    let in_group = (0..round.steps.len()).find(|at| made(*at).is_some());
    let in_world = (0..round.steps.len()).find(|at| made(*at).is_none());
    let all: Vec<String> = (0..round.processes()).map(|rank| format!("rank {rank}")).collect();
    let plan = format!("messages of all_reduce from {}, and no cable connects them", all.join(" to "));
    let message = format!("{}: no cable connects it with {}", all.join(", "), all[0]);
    // `chaos --seed 102 --round 238 --transport verbs --fabric usb4`
    let growing = round.steps.iter().position(|step| matches!(step.work, Work::Grow { .. }));
    let alone = format!("rank 0: none of its devices (d0) reaches one of {}", all.join(", "));
    for (step, kind, text, is_excused) in [
        (in_group, "Plan", &plan, true),
        (in_group, "Transport", &message, true),
        (in_world, "Plan", &plan, false),
        (growing, "Transport", &alone, true),
        (in_world, "Transport", &message, false),
        (in_world, "Transport", &alone, false),
        (in_group, "Timeout", &plan, false),
    ] {
        let mut accounts = accounts(&round);
        let error = failed(step, 2 * SECOND, 10, text);
        accounts[0].failures.push(Failed { kind: kind.to_owned(), ..error });
        let verdict = judged(&round, &accounts, &[Some(SECOND)]);
        assert_eq!(verdict.violations.is_empty(), is_excused, "{kind}: {verdict:?}");
    }
}

#[test]
fn a_rank_may_wait_in_vain_for_one_that_lacks_a_cable() {
    let setting = Setting::all(&[Transport::Verbs], &["ib"]).remove(0);
    let wishes = Wishes { settings: vec![setting], faults: vec![Kind::Unplug], timeout: LIMIT };
    let step_in_made_group = |round: &Round| {
        let is_made = |at: &usize| round.groups[round.steps[*at].group].made_by.is_some();
        (0..round.steps.len()).find(|at| is_made(at) && round.members(round.steps[*at].group).len() > 1)
    };
    let rounds = (0..).map(|number| Round::new(1, number, &wishes));
    let found = rounds.into_iter().find_map(|round| Some((step_in_made_group(&round)?, round)));
    let (step, round) = found.expect("there are many");
    let members = round.members(round.steps[step].group).to_vec();
    for (has_told, is_excused) in [(true, true), (false, false)] {
        let mut accounts = accounts(&round);
        if has_told {
            let error = failed(Some(step), 2 * SECOND, 10, "rank 1: no cable connects it with rank 2");
            accounts[members[1] as usize].failures.push(error);
        }
        let text = "no progress within the time limit; rank 1 does not send the message";
        accounts[members[0] as usize].failures.push(failed(Some(step), 4 * SECOND, 3 * SECOND, text));
        let verdict = judged(&round, &accounts, &[Some(SECOND)]);
        assert_eq!(verdict.violations.is_empty(), is_excused, "{verdict:?}");
    }
}

#[test]
fn a_short_pause_excuses_nothing() {
    let round = round_with(Kind::Pause, 1);
    let mut accounts = accounts(&round);
    accounts[0].failures.push(failed(Some(0), 2 * SECOND, SECOND, "rank 1 is outside"));
    assert_violates(&judged(&round, &accounts, &[Some(SECOND)]), "without a fault");
}

#[test]
fn an_error_names_the_rank_or_the_process_of_the_fault() {
    for (text, is_named) in [
        ("rank 1 failed", true),
        ("the link to process 1001 on host", true),
        ("these ranks have not joined in time: 0, 1; start them", true),
        ("these ranks have joined, but not sent their addresses in time: 1; allow more", true),
        ("these ranks have not joined in time: 0, 11; start them", false),
        ("rank 10 failed", false),
        ("frank 1", false),
        ("rank 2 failed", false),
        ("process 10010", false),
    ] {
        let round = round_with(Kind::Stop, 1);
        let mut accounts = accounts(&round);
        accounts[0].failures.push(failed(Some(0), 2 * SECOND, SECOND, text));
        let verdict = judged(&round, &accounts, &[Some(SECOND)]);
        assert_eq!(verdict.violations.is_empty(), is_named, "{text}: {verdict:?}");
    }
}

#[test]
fn an_error_comes_within_the_limit_and_two_seconds_of_the_fault_or_the_call() {
    // The fault, the error, the duration of the call, and whether that is in time.
    for (fault, error, took, is_in_time) in
        [(1, 5, 4, true), (1, 6, 5, true), (1, 7, 6, false), (1, 9, 3, true), (6, 9, 8, true)]
    {
        let round = round_with(Kind::Stop, 1);
        let mut accounts = accounts(&round);
        accounts[2].failures.push(failed(Some(0), error * SECOND, took * SECOND, "rank 1"));
        let verdict = judged(&round, &accounts, &[Some(fault * SECOND)]);
        assert_eq!(verdict.violations.is_empty(), is_in_time, "{fault} {error} {took}: {verdict:?}");
    }
}

#[test]
fn a_process_that_a_fault_ends_owes_nothing_and_others_owe_everything() {
    let round = round_with(Kind::Kill, 1);
    for (number, is_right) in [(1, true), (2, false)] {
        let mut accounts = accounts(&round);
        accounts[number] = Account::default();
        accounts[number].pid = Some(5);
        accounts[number].step = Some((0, SECOND));
        let verdict = judged(&round, &accounts, &[Some(SECOND)]);
        assert_eq!(verdict.violations.is_empty(), is_right, "{verdict:?}");
    }
}

#[test]
fn a_process_that_is_stuck_or_left_something_is_reported() {
    let round = quiet_round();
    let mut accounts = accounts(&round);
    accounts[0].finished = None;
    accounts[1].next = Some(Err("no".to_owned()));
    accounts[2].residue = Some(vec!["a socket".to_owned()]);
    let ends = [End::Stuck, End::Ended, End::Ended];
    let leftovers = ["process 9".to_owned()];
    let (accounts, ends) = (&accounts, &ends);
    let observation =
        Observation { round: &round, accounts, injected: &[], effective: &[], ends, leftovers: &leftovers };
    let texts: Vec<String> = judge(&observation).violations.into_iter().map(|v| v.text).collect();
    assert_eq!(texts.len(), 4, "{texts:?}");
    for (text, part) in texts.iter().zip(["hangs in step", "failed: no", "a socket", "process 9"]) {
        assert!(text.contains(part), "{text}");
    }
}

/// Rank 2 fails on the world, so that it is missing in a group that the world makes later.
#[test]
fn a_rank_that_failed_to_make_a_group_may_be_named_there() {
    let mut round = round_with(Kind::Stop, 1);
    let made_by = round.steps.iter().position(|step| step.group == 0).expect("the world has steps");
    round.groups.push(GroupPlan { members: vec![0, 2], made_by: Some(made_by), is_tagged: false });
    let group = round.groups.len() - 1;
    round.steps.push(Step { group, work: Work::Barrier });
    let last = round.steps.len() - 1;
    for (fails, is_excused) in [(true, true), (false, false)] {
        let mut accounts = accounts(&round);
        if fails {
            accounts[2].failures.push(failed(Some(made_by), 4 * SECOND, 10, "rank 1 is outside"));
        }
        accounts[0].failures.push(failed(Some(last), 9 * SECOND, 3 * SECOND, "rank 1 is outside"));
        // In the group of two, process 2 is rank 1, and process 1 is no member.
        accounts[1].pid = None;
        let observed = judged(&round, &accounts, &[Some(SECOND)]);
        let is_right = observed.violations.is_empty();
        assert_eq!(is_right, is_excused, "{observed:?}");
    }
}

/// Returns a round with another group, of processes 1 and 2, and steps of the world and of that group.
fn round_with_a_pair() -> (Round, usize, usize) {
    let mut round = round_with(Kind::Stop, 1);
    let in_world = round.steps.iter().position(|step| step.group == 0).expect("the world has steps");
    round.groups.push(GroupPlan { members: vec![1, 2], made_by: None, is_tagged: false });
    let group = round.groups.len() - 1;
    round.steps.push(Step { group, work: Work::Barrier });
    let elsewhere = round.steps.len() - 1;
    (round, in_world, elsewhere)
}

#[test]
fn an_error_of_a_group_may_name_the_rank_of_the_job_that_all_wait_for() {
    let (round, _, elsewhere) = round_with_a_pair();
    // In the pair, process 1 is rank 0. In the job, it is rank 1.
    for (text, is_named) in [
        ("no progress; rank 1 never called gather number 3 of communicator 0: it has been outside", true),
        ("no progress; rank 2 never called gather number 3 of communicator 0: it has been outside", false),
        ("no progress in rank 1; gather number 3 of communicator 0", false),
        // `chaos --seed 108 --round 147 --transport shm`
        ("no progress; no message gets from rank 1 to rank 4 of communicator 1: rank 4 waits", true),
        ("no progress; no message gets from rank 2 to rank 1 of communicator 1 (over shm)", false),
    ] {
        let mut accounts = accounts(&round);
        accounts[1].pid = None;
        accounts[2].failures.push(failed(Some(elsewhere), 2 * SECOND, SECOND, text));
        let verdict = judged(&round, &accounts, &[Some(SECOND)]);
        assert_eq!(verdict.violations.is_empty(), is_named, "{text}: {verdict:?}");
    }
}

/// Process 2 waits for its error on another group while process 0 waits for it on the world. Then it gets the
/// error of process 0, which names it.
#[test]
fn a_rank_that_was_held_up_elsewhere_is_named_to_itself_too() {
    let (round, in_world, elsewhere) = round_with_a_pair();
    for (is_held_up, is_excused) in [(true, true), (false, false)] {
        let mut accounts = accounts(&round);
        accounts[0].failures.push(failed(Some(in_world), 5 * SECOND, 3 * SECOND, "rank 2 never called"));
        accounts[1].pid = None;
        let took = if is_held_up { 3 * SECOND } else { 10 };
        // In the group of two, process 1 is rank 0.
        accounts[2].failures.push(failed(Some(elsewhere), 6 * SECOND, took, "rank 0 is outside"));
        accounts[2].failures.push(failed(Some(in_world), 6 * SECOND + 20, 10, "rank 2 never called"));
        let verdict = judged(&round, &accounts, &[Some(SECOND)]);
        assert_eq!(verdict.violations.is_empty(), is_excused, "{verdict:?}");
    }
}

/// Process 0 waits for the full time limit twice: for process 2, which waits for its error on another group,
/// and for process 1 after it.
#[test]
fn an_error_may_come_later_where_a_rank_was_held_up_elsewhere() {
    let (round, in_world, elsewhere) = round_with_a_pair();
    for (took, is_in_time) in [(3 * SECOND, true), (10, false)] {
        let mut accounts = accounts(&round);
        accounts[0].failures.push(failed(Some(in_world), 8 * SECOND, 6 * SECOND, "rank 1 is stopped"));
        accounts[2].failures.push(failed(Some(elsewhere), 5 * SECOND, took, "rank 0 is stopped"));
        let verdict = judged(&round, &accounts, &[Some(SECOND)]);
        assert_eq!(verdict.violations.is_empty(), is_in_time, "{verdict:?}");
    }
}

#[test]
fn a_stopped_process_may_report_its_error_when_it_runs_again() {
    let round = round_with(Kind::Stop, 1);
    let stopped = round.faults[0].lasting.as_micros() as u64;
    for (number, is_in_time) in [(1, true), (0, false)] {
        let mut accounts = accounts(&round);
        let took = stopped + 4 * SECOND;
        accounts[number].failures.push(failed(Some(0), SECOND + took, took, "rank 1 is outside"));
        let verdict = judged(&round, &accounts, &[Some(SECOND)]);
        assert_eq!(verdict.violations.is_empty(), is_in_time, "{verdict:?}");
    }
}
