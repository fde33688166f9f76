//! The oracle: judges a round by the plan, the faults that were injected, and the reports of all processes.
//!
//! After a round with any faults:
//!
//! - no process has got a wrong result;
//! - every process that no fault ends has passed all steps, each with the right result or an error;
//! - every error has an excuse: a fault that may fail the step's group, and that happened before;
//! - the error names a culprit, and comes within the time limit plus two seconds;
//! - the processes that live have made a communicator without the others, and used it;
//! - nothing is left, in a process or outside.
//!
//! An error on one group may be the reason for another error: a rank that was not able to make a group is
//! missing there. Such an error names the missing rank.

#[cfg(test)]
mod tests;

use super::{
    account::{Account, Failed},
    fault::{Effect, Fault, Kind},
    plan::{Round, Work},
};
use bootstrap::LAUNCHER_ADVICE;
use serde::Serialize;
use std::{collections::BTreeSet, time::Duration};
use transport::verbs::Cause;

/// Time beyond the time limit of calls within which an error must come.
const GRACE: Duration = Duration::from_secs(2);

/// The beginning of what a process reports whose forked child a signal has ended.
const CHILD_ENDED: &str = "a forked child was killed by signal";

/// The error of ranks whose launcher, or rendezvous, has ended.
const LAUNCHER_GONE: &str = "the launcher that started this job is gone";

/// A violation of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Violation {
    /// Number of the process, if one is concerned.
    pub(super) process: Option<u32>,
    pub(super) text: String,
}

/// The end of a process, as the driver saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// It ended by itself.
    Ended,
    /// It was there when the driver lost its patience.
    Stuck,
}

/// A round as it happened.
#[derive(Debug)]
pub(super) struct Observation<'r> {
    pub(super) round: &'r Round,
    /// By number of process.
    pub(super) accounts: &'r [Account],
    /// Times at which the faults were injected; `None` for those that came too late.
    pub(super) injected: &'r [Option<u64>],
    /// Times by which they had been injected.
    pub(super) effective: &'r [Option<u64>],
    /// By number of process.
    pub(super) ends: &'r [End],
    /// Descriptions of what is left after all processes have ended.
    pub(super) leftovers: &'r [String],
}

/// The verdict about a round.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) violations: Vec<Violation>,
    /// Errors that have an excuse.
    pub(super) errors: u32,
    /// Longest time from a fault, or from the beginning of the call if that is later, to its error.
    pub(super) longest: Duration,
}

/// Judges a round.
pub(super) fn judge(observation: &Observation<'_>) -> Verdict {
    let mut verdict = Verdict::default();
    for number in 0..observation.round.processes() {
        judge_process(observation, number, &mut verdict);
    }
    let left = observation.leftovers.iter().map(|text| Violation { process: None, text: text.clone() });
    verdict.violations.extend(left);
    verdict
}

fn judge_process(observation: &Observation<'_>, number: u32, verdict: &mut Verdict) {
    let account = &observation.accounts[number as usize];
    let mut violate = |text: String| verdict.violations.push(Violation { process: Some(number), text });
    let must_live = observation.must_live(number);
    // The end of the job ends forked children too.
    let wrong = account.wrong.iter().filter(|text| must_live || !text.contains(CHILD_ENDED));
    wrong.for_each(|text| violate(format!("wrong result: {text}")));
    for failed in &account.failures {
        if let Err(text) = observation.excuse(number, failed) {
            violate(text);
        }
    }
    if !must_live {
        let fine = account.failures.iter().filter(|failed| observation.excuse(number, failed).is_ok());
        verdict.errors += fine.count() as u32;
        return;
    }
    if let Some(text) = observation.is_unfinished(number) {
        violate(text);
    }
    match &account.next {
        Some(Err(error)) if !observation.is_hit_late() && !observation.lacks_queue_pairs(error) => {
            violate(format!("the next communicator failed: {error}"));
        }
        None if account.finished.is_some() && observation.makes_next(number) => {
            violate("the next communicator was not made".to_owned());
        }
        _ => {}
    }
    account.residue.iter().flatten().for_each(|text| violate(format!("is left after closing: {text}")));
    for failed in &account.failures {
        if let Ok(late) = observation.excuse(number, failed) {
            verdict.errors += 1;
            verdict.longest = verdict.longest.max(late);
        }
    }
}

/// Whether a rank could not make a group because no port of its host was up.
fn is_without_port(failed: &Failed) -> bool {
    failed.text.contains("no RDMA device can be used: the port is down")
}

impl Observation<'_> {
    /// Returns the faults that happened, with their times.
    fn happened(&self) -> impl Iterator<Item = (&Fault, u64)> {
        self.round.faults.iter().zip(self.injected).filter_map(|(fault, at)| Some((fault, (*at)?)))
    }

    /// Whether a fault that may fail calls has come when a process had passed all of its steps, or has not
    /// failed a call so far although it lasts. The next communicator may meet it.
    fn is_hit_late(&self) -> bool {
        let first = self.accounts.iter().filter_map(|account| account.finished).min();
        let is_unmet = self.accounts.iter().all(|account| account.failures.is_empty());
        let mut faults = self.round.faults.iter().zip(self.effective);
        faults.any(|(fault, at)| {
            let is_late = at.zip(first).is_some_and(|(at, first)| at > first);
            // A device is broken from then on, which shows when it is polled.
            let lasts = fault.kind == Kind::Overflow && at.is_some() && is_unmet;
            (is_late || lasts) && self.round.effect(fault) == Effect::Fails
        })
    }

    /// Whether no fault ends the process.
    fn must_live(&self, number: u32) -> bool {
        !self.happened().any(|(fault, _)| match self.round.effect(fault) {
            Effect::Ends => self.round.culprits(fault).contains(&number),
            // Processes that join later are not the launcher's.
            Effect::EndsAll => number < self.round.ranks,
            _ => false,
        })
    }

    /// Whether the process makes the next communicator with others.
    fn makes_next(&self, number: u32) -> bool {
        number < self.round.ranks
    }

    /// Describes a process that has not passed all of its steps.
    fn is_unfinished(&self, number: u32) -> Option<String> {
        let account = &self.accounts[number as usize];
        let place = account.step.map_or("while it joined".to_owned(), |(step, _)| {
            format!("in step {step} ({})", self.round.steps[step].work.name())
        });
        match (account.finished, self.ends[number as usize], account.residue.is_some()) {
            (None, End::Stuck, _) => Some(format!("hangs {place}")),
            (None, End::Ended, _) => Some(format!("ended {place}")),
            (Some(_), End::Stuck, _) => Some("hangs after its last step".to_owned()),
            (Some(_), End::Ended, false) => {
                Some("ended after its last step, before it had closed".to_owned())
            }
            _ => None,
        }
    }

    /// Returns the time to an error from its cause or from the beginning of the call, or describes the rule
    /// that the error violates.
    fn excuse(&self, number: u32, failed: &Failed) -> Result<Duration, String> {
        let place = self.place(failed);
        let Some(cause) = self.cause(failed) else {
            return Err(format!("failed {place} without a fault: {}", failed.text));
        };
        if !self.names_culprit(number, failed) {
            return Err(format!("failed {place} and names no culprit: {}", failed.text));
        }
        let late = Duration::from_micros(failed.took.min(failed.at.saturating_sub(cause)));
        // A stopped process can't return, and a fault that fails no call may slow calls down.
        let slows = |fault: &Fault| {
            self.round.effect(fault) == Effect::None || (fault.kind == Kind::Stop && fault.rank == number)
        };
        let slowed: Duration =
            self.happened().filter(|(fault, _)| slows(fault)).map(|(fault, _)| fault.lasting).sum();
        // A member that waited for an error on another group comes after it, which is progress.
        let held_up: Duration = self
            .naming_members(failed)
            .iter()
            .map(|member| self.held_up(*member, failed))
            .max()
            .unwrap_or_default();
        // A split waits for the exchange of colors, and then for the ranks to join.
        let waits = if self.is_split(failed.step) { 2 } else { 1 };
        if late > self.round.timeout * waits + GRACE + slowed + held_up {
            return Err(format!("failed {place} only after {late:?}: {}", failed.text));
        }
        Ok(late)
    }

    fn place(&self, failed: &Failed) -> String {
        match failed.step {
            None => "to join".to_owned(),
            Some(step) => format!("in step {step} ({})", self.round.steps[step].work.name()),
        }
    }

    /// Returns the time of the latest fault before an error that may fail calls.
    fn cause(&self, failed: &Failed) -> Option<u64> {
        let causes = self
            .happened()
            .filter(|(fault, _)| self.round.effect(fault) != Effect::None || self.lacks_cable(fault, failed));
        causes.map(|(_, at)| at).filter(|at| *at <= failed.at).max()
    }

    /// Whether the error names a process that is to blame, or this one is to blame itself.
    fn names_culprit(&self, number: u32, failed: &Failed) -> bool {
        let group = self.group_of(failed);
        let culprits = self.culprits(group, failed);
        // The error names the rank and the port.
        if self.is_at_fault(number) || is_without_port(failed) {
            return true;
        }
        // Ranks that a launcher takes along may tell of its end before theirs. A reset may be that of the
        // connection to it.
        let has_lost_launcher = self.has_effect(Effect::EndsAll)
            || group == 0
                && (self.has_effect(Effect::Orphans)
                    || self.happened().any(|(fault, _)| fault.kind == Kind::Reset));
        // Another rank may have told first, and a communicator that can't grow tells a rank that joins.
        // The rank that serves the ranks which join has ended, and told them nothing.
        if number >= self.round.ranks
            && failed.text.contains(LAUNCHER_ADVICE)
            && self.has_effect(Effect::Ends)
        {
            return true;
        }
        let tells_of_it = [LAUNCHER_GONE, LAUNCHER_ADVICE].iter().any(|text| failed.text.contains(text));
        if tells_of_it && has_lost_launcher {
            return true;
        }
        let members = self.naming_members(failed);
        let is_named = |culprit: &u32| {
            let rank = members.iter().position(|member| member == culprit);
            let pid = self.accounts[*culprit as usize].pid;
            rank.is_some_and(|rank| {
                mentions(&failed.text, "rank", rank as u32) || is_listed(&failed.text, rank as u32)
            }) || pid.is_some_and(|pid| mentions(&failed.text, "process", pid))
                || is_named_in_job(&failed.text, *culprit)
        };
        culprits.iter().any(is_named)
    }

    /// Whether an error says that the wiring of a group lacks a cable which was out when the group was made.
    /// A group that has connections of its own has none over a port that is down then, and is not made where
    /// that is the only one of a rank.
    ///
    /// A rank that waits for one which has got that error may wait in vain: the error is none of the group.
    fn lacks_cable(&self, fault: &Fault, failed: &Failed) -> bool {
        let is_out = matches!(fault.kind, Kind::Unplug | Kind::Port | Kind::Cut);
        let group = self.group_of(failed);
        let grows = |step: usize| matches!(self.round.steps[step].work, Work::Grow { .. });
        let is_made = self.round.groups[group].made_by.is_some() || failed.step.is_some_and(grows);
        let failures = || {
            self.naming_members(failed).iter().flat_map(|member| &self.accounts[*member as usize].failures)
        };
        let peer_lacks_it = || {
            failures().any(|other| {
                self.group_of(other) == group && other.step <= failed.step && tells_of_missing_cable(other)
            })
        };
        is_out && (is_made && (tells_of_missing_cable(failed) || peer_lacks_it()) || is_without_port(failed))
    }

    /// Whether the next communicator has no connections because those of the last one still have the queue
    /// pairs of the device. Apple's devices have ten, too few for both where two ranks of each host share
    /// them. The last one has them as long as it is open, which `shrink` needs.
    fn lacks_queue_pairs(&self, error: &str) -> bool {
        let has_lost_rank = self.has_effect(Effect::Fails) || self.has_effect(Effect::Ends);
        let is_scarce = self.round.setting.fabric_name() == Some("apple-tb5") && self.round.per_node > 1;
        is_scarce && has_lost_rank && error.contains(Cause::QueuePairs.what())
    }

    fn has_effect(&self, effect: Effect) -> bool {
        self.happened().any(|(fault, _)| self.round.effect(fault) == effect)
    }

    /// Whether a fault aims at the process that may make its calls fail.
    fn is_at_fault(&self, number: u32) -> bool {
        self.happened().any(|(fault, _)| self.round.effect(fault) == Effect::Fails && fault.blames(number))
    }

    fn group_of(&self, failed: &Failed) -> usize {
        failed.step.map_or(0, |step| self.round.steps[step].group)
    }

    /// Returns the processes by whose ranks an error names them.
    fn naming_members(&self, failed: &Failed) -> &[u32] {
        match failed.step.map(|step| &self.round.steps[step]) {
            None => self.round.members(0),
            // The new ranks have the next numbers.
            Some(step) => match step.work {
                Work::Grow { makes, .. } => self.round.members(makes),
                _ => self.round.members(step.group),
            },
        }
    }

    /// Returns the processes that are to blame for an error on a group.
    fn culprits(&self, group: usize, failed: &Failed) -> BTreeSet<u32> {
        let mut culprits = BTreeSet::new();
        for (fault, _) in self.happened() {
            match self.round.effect(fault) {
                Effect::None if self.lacks_cable(fault, failed) => {
                    culprits.extend(self.round.culprits(fault));
                }
                Effect::None | Effect::Orphans => {}
                Effect::Fails | Effect::Ends => culprits.extend(self.round.culprits(fault)),
                Effect::EndsAll => culprits.extend(0..self.round.ranks),
            }
        }
        for member in self.naming_members(failed) {
            if self.is_missing(*member, group, failed) || self.is_held_up(*member, failed) {
                culprits.insert(*member);
            }
        }
        culprits
    }

    /// Whether a process has not come to a step, since it had failed to make the group, or had failed to make
    /// another group of this one's members, or lacked a cable for a message. An error of making a group is no
    /// error of its parent, so that other members of the parent are not told of it.
    fn is_missing(&self, member: u32, group: usize, failed: &Failed) -> bool {
        let made_by = self.round.groups[group].made_by;
        self.accounts[member as usize].failures.iter().any(|other| {
            let is_on_group = self.group_of(other) == group && other.step <= failed.step;
            let is_on_parent = made_by.is_some_and(|made_by| {
                other.step <= Some(made_by) && self.group_of(other) == self.round.steps[made_by].group
            });
            let is_own =
                self.is_making(failed.step) || self.is_making(other.step) || tells_of_missing_cable(other);
            is_on_group && is_own || is_on_parent
        })
    }

    /// Whether a step makes a group. Its error is none of the group that it is made from.
    fn is_making(&self, step: Option<usize>) -> bool {
        step.is_some_and(|step| !self.round.steps[step].work.makes().is_empty())
    }

    fn is_split(&self, step: Option<usize>) -> bool {
        step.is_some_and(|step| matches!(self.round.steps[step].work, Work::Split { .. } | Work::Tag { .. }))
    }

    /// Whether a process was waiting for its own error on another group, or of making one, when it should
    /// have come: when the group failed here, or on the rank whose error this one repeats.
    fn is_held_up(&self, member: u32, failed: &Failed) -> bool {
        !self.held_up(member, failed).is_zero()
    }

    /// Returns how long a process waited for that error.
    fn held_up(&self, member: u32, failed: &Failed) -> Duration {
        let group = self.group_of(failed);
        let begin = |failed: &Failed| failed.at.saturating_sub(failed.took);
        let of_group = |other: &&Failed| {
            self.group_of(other) == group && other.at <= failed.at && !self.is_making(other.step)
        };
        let errors: Vec<&Failed> =
            self.accounts.iter().flat_map(|account| &account.failures).filter(of_group).collect();
        let elsewhere = self.accounts[member as usize].failures.iter().filter(|other| {
            (self.group_of(other) != group || self.is_making(other.step))
                && Duration::from_micros(other.took) >= self.round.timeout / 2
                && errors.iter().any(|error| begin(other) < error.at && begin(error) < other.at)
        });
        elsewhere.map(|other| Duration::from_micros(other.took)).max().unwrap_or_default()
    }
}

/// Whether an error says that no cable connects two ranks.
fn tells_of_missing_cable(failed: &Failed) -> bool {
    let texts = ["no cable connects it with rank", "none of its devices ("];
    failed.kind == "Plan" || texts.iter().any(|text| failed.text.contains(text))
}

/// Whether a text about several communicators names this process by its rank in the job. An error of a group
/// does where the knot is in a call on another communicator: ranks are those of the job there unless the text
/// says otherwise.
fn is_named_in_job(text: &str, number: u32) -> bool {
    let wanted = format!("rank {number}");
    let is_named = |sentence: &str| {
        let rest = sentence.match_indices(&wanted).map(|(at, found)| &sentence[at + found.len()..]);
        let is_of_job = |rest: &str| {
            !rest.starts_with(|c: char| c.is_ascii_digit())
                && (!rest.starts_with(" of communicator ") || rest.starts_with(" of communicator 0"))
        };
        rest.into_iter().any(is_of_job)
    };
    text.split("; ").any(|sentence| sentence.contains("of communicator ") && is_named(sentence))
}

/// Whether a text lists this rank among those that have not joined, or not sent their addresses, in time.
fn is_listed(text: &str, rank: u32) -> bool {
    let list = text.split_once(" in time: ").and_then(|(_, rest)| rest.split(';').next());
    list.is_some_and(|list| list.split(", ").any(|number| number.parse() == Ok(rank)))
}

/// Whether a text contains a word and, after a space, this number as a whole word.
fn mentions(text: &str, word: &str, number: u32) -> bool {
    let wanted = format!("{word} {number}");
    text.match_indices(&wanted).any(|(at, found)| {
        let before = text[..at].chars().next_back();
        let after = text[at + found.len()..].chars().next();
        !before.is_some_and(char::is_alphanumeric) && !after.is_some_and(|c| c.is_ascii_digit())
    })
}
