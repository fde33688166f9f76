//! Tests of the oracle, on rounds with faults and reports made by hand.

use super::{
    super::{
        account::Report,
        fault::Kind,
        plan::{GroupPlan, Wishes},
        settings::Setting,
    },
    *,
};
use tbccl::Transport;

const LIMIT: Duration = Duration::from_secs(3);
const SECOND: u64 = 1_000_000;

/// Returns a round of three ranks without a fault.
fn quiet_round() -> Round {
    let setting = Setting { transport: Transport::Shm, fabric: None };
    let wishes = Wishes { settings: vec![setting], faults: Vec::new(), timeout: LIMIT };
    let mut rounds = (0..).map(|number| Round::new(1, number, &wishes));
    let mut round = rounds.find(|round| round.ranks == 3 && round.newcomers == 0).expect("there are many");
    round.faults.clear();
    round
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
    judge(&Observation { round, accounts, injected, ends: &ends, leftovers: &[] })
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
    let observation =
        Observation { round: &round, accounts: &accounts, injected: &[], ends: &ends, leftovers: &leftovers };
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
    round.steps.push(super::super::plan::Step { group, work: Work::Barrier });
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
