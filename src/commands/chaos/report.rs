//! Text and JSON about rounds, and the summary of a campaign.

use super::{
    CommandError,
    driver::Judged,
    fault::{Actor, Effect, Fault, Kind},
    oracle::Violation,
    plan::{Round, Wishes},
    print,
};
use serde::Serialize;
use std::{collections::BTreeMap, fmt::Write as _, fs::File, io::Write as _, path::Path, time::Duration};

/// Destination of the reports about rounds.
#[derive(Debug)]
pub(super) struct Report {
    /// The file for JSON; stdout if `is_quiet`.
    json: Option<File>,
    /// Whether JSON goes to stdout, in the place of text.
    is_quiet: bool,
}

/// A line of JSON about a round.
#[derive(Serialize)]
struct RoundLine<'a> {
    round: u32,
    seed: u64,
    transport: String,
    fabric: Option<&'a str>,
    start: &'a str,
    ranks: u32,
    newcomers: u32,
    steps: usize,
    groups: usize,
    faults: &'a [Fault],
    /// Whether each fault was injected before the round was over.
    injected: &'a [bool],
    errors: u32,
    longest_error_s: f64,
    seconds: f64,
    violations: &'a [Violation],
    replay: String,
}

/// The line of JSON about a campaign.
#[derive(Serialize)]
struct SummaryLine<'a> {
    rounds: u32,
    failing_rounds: u32,
    violations: usize,
    errors: u32,
    longest_error_s: f64,
    seconds: f64,
    by_fault: BTreeMap<&'a str, &'a Tally>,
}

impl Report {
    /// Opens the file for JSON, if there is one; `-` means stdout.
    pub(super) fn open(json: Option<&Path>) -> Result<Report, CommandError> {
        match json {
            None => Ok(Report { json: None, is_quiet: false }),
            Some(path) if path == Path::new("-") => Ok(Report { json: None, is_quiet: true }),
            Some(path) => {
                let file = File::create(path)
                    .map_err(|error| CommandError::new(format_args!("{}: {error}", path.display())))?;
                Ok(Report { json: Some(file), is_quiet: false })
            }
        }
    }

    /// Reports a round. Rounds that violate no rule are silent in text.
    pub(super) fn round(&mut self, judged: &Judged, wishes: &Wishes) -> Result<(), CommandError> {
        let Judged { round, verdict, injected, took, .. } = judged;
        self.write_json(&RoundLine {
            round: round.number,
            seed: round.seed,
            transport: round.setting.transport.to_string(),
            fabric: round.setting.fabric_name(),
            start: round.start.name(),
            ranks: round.ranks,
            newcomers: round.newcomers,
            steps: round.steps.len(),
            groups: round.groups.len(),
            faults: &round.faults,
            injected,
            errors: verdict.errors,
            longest_error_s: verdict.longest.as_secs_f64(),
            seconds: took.as_secs_f64(),
            violations: &verdict.violations,
            replay: replay(round, wishes),
        })?;
        if !self.is_quiet && !verdict.violations.is_empty() {
            print(&text_of(judged, wishes));
        }
        Ok(())
    }

    /// Reports the campaign.
    pub(super) fn end(&mut self, summary: &Summary, took: Duration) -> Result<(), CommandError> {
        let total = &summary.total;
        self.write_json(&SummaryLine {
            rounds: total.rounds,
            failing_rounds: total.failing,
            violations: summary.violations,
            errors: total.errors,
            longest_error_s: total.longest_error_s,
            seconds: took.as_secs_f64(),
            by_fault: summary.by_fault.iter().map(|(name, tally)| (*name, tally)).collect(),
        })?;
        if !self.is_quiet {
            print(&summary.table(took));
        }
        Ok(())
    }

    fn write_json(&mut self, line: &impl Serialize) -> Result<(), CommandError> {
        let text = serde_json::to_string(line).map_err(CommandError::new)? + "\n";
        if self.is_quiet {
            print(&text);
        }
        self.json.as_mut().map_or(Ok(()), |file| file.write_all(text.as_bytes())).map_err(CommandError::new)
    }
}

/// Returns the command that runs a round again.
fn replay(round: &Round, wishes: &Wishes) -> String {
    format!(
        "tbccl chaos --seed {} --round {} --timeout {} {}{}",
        round.seed,
        round.number,
        wishes.timeout.as_secs_f64(),
        round.setting.options(),
        wishes.fault_options()
    )
}

/// Describes a round that violates rules.
fn text_of(judged: &Judged, wishes: &Wishes) -> String {
    let Judged { round, verdict, injected, output, .. } = judged;
    let mut text = format!(
        "round {} of seed {}: {} ranks on {}, started by {}\n",
        round.number,
        round.seed,
        round.ranks,
        round.setting,
        round.start.name()
    );
    for (fault, injected) in round.faults.iter().zip(injected) {
        let place = match fault.kind.row().actor {
            Actor::Fabric => String::new(),
            _ if fault.kind.is_before_joining() => format!(" at process {}", fault.rank),
            _ => {
                let step = &round.steps[fault.step];
                format!(" at process {} in step {} ({})", fault.rank, fault.step, step.work.name())
            }
        };
        let cable = if fault.kind.aims_at_cable() {
            format!(", {}", round.cable(fault.cable)[fault.end].0)
        } else {
            String::new()
        };
        let missed = if *injected { "" } else { " (did not happen)" };
        let _ = writeln!(text, "  fault: {}{place}{cable}{missed}", fault.kind.name());
    }
    for Violation { process, text: what } in &verdict.violations {
        let who = process.map_or(String::new(), |number| format!("process {number} "));
        let _ = writeln!(text, "  violation: {who}{what}");
    }
    for line in output.lines() {
        let _ = writeln!(text, "  | {line}");
    }
    let _ = writeln!(text, "  again: {}", replay(round, wishes));
    text
}

/// Counts of rounds with something in common.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Tally {
    rounds: u32,
    failing: u32,
    /// Errors that were reported as they should be.
    errors: u32,
    longest_error_s: f64,
}

impl Tally {
    fn add(&mut self, judged: &Judged) {
        self.rounds += 1;
        self.failing += u32::from(!judged.verdict.violations.is_empty());
        self.errors += judged.verdict.errors;
        self.longest_error_s = self.longest_error_s.max(judged.verdict.longest.as_secs_f64());
    }
}

/// Counts of a campaign.
#[derive(Debug, Default)]
pub(super) struct Summary {
    total: Tally,
    violations: usize,
    /// By name of the fault, or `none`.
    by_fault: BTreeMap<&'static str, Tally>,
    by_setting: BTreeMap<String, Tally>,
}

impl Summary {
    pub(super) fn add(&mut self, judged: &Judged) {
        self.total.add(judged);
        self.violations += judged.verdict.violations.len();
        self.by_setting.entry(judged.round.setting.to_string()).or_default().add(judged);
        let happened = judged.round.faults.iter().zip(&judged.injected).filter(|(_, injected)| **injected);
        let mut kinds: Vec<Kind> = happened.map(|(fault, _)| fault.kind).collect();
        kinds.sort_unstable();
        if kinds.is_empty() {
            self.by_fault.entry("none").or_default().add(judged);
        }
        // Errors belong to the fault that may cause them.
        let may_fail = |kind: &Kind| kind.row().effect != Effect::None;
        let has_cause = kinds.iter().any(may_fail);
        for kind in kinds {
            let tally = self.by_fault.entry(kind.name()).or_default();
            if may_fail(&kind) || !has_cause {
                tally.add(judged);
            } else {
                tally.rounds += 1;
            }
        }
    }

    pub(super) fn violations(&self) -> usize {
        self.violations
    }

    /// Returns the summary as tables.
    fn table(&self, took: Duration) -> String {
        let mut text = String::new();
        let mut rows = |title: &str, rows: &mut dyn Iterator<Item = (&str, &Tally)>| {
            let _ = writeln!(
                text,
                "{title:<22} {:>7} {:>8} {:>7} {:>14}",
                "rounds", "failing", "errors", "longest error"
            );
            for (name, tally) in rows {
                let _ = writeln!(
                    text,
                    "{name:<22} {:>7} {:>8} {:>7} {:>12.2} s",
                    tally.rounds, tally.failing, tally.errors, tally.longest_error_s
                );
            }
        };
        rows("fault", &mut self.by_fault.iter().map(|(name, tally)| (*name, tally)));
        rows("transport", &mut self.by_setting.iter().map(|(name, tally)| (name.as_str(), tally)));
        rows("all", &mut [("", &self.total)].into_iter());
        let violations = self.violations;
        let _ = writeln!(text, "{violations} violations in {:.0} s", took.as_secs_f64());
        text
    }
}
