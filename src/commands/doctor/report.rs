//! The report, as text and as JSON.

use super::check::{Check, Finding, Outcome, Verdict};
use serde_json::{Value, json};
use std::fmt::Write;

/// A check and its outcome.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) check: &'static Check,
    pub(super) outcome: Outcome,
}

/// The outcomes of all chosen checks.
#[derive(Debug)]
pub(super) struct Report {
    /// Names of the hosts.
    pub(super) hosts: Vec<String>,
    pub(super) entries: Vec<Entry>,
}

impl Entry {
    /// Returns the worst verdict; `None` if the check applies to no host.
    fn verdict(&self) -> Option<Verdict> {
        let worst = self.outcome.findings.iter().map(|finding| finding.verdict).max();
        worst.or(self.outcome.good.as_ref().map(|_| Verdict::Green))
    }
}

impl Report {
    /// Whether a check is red.
    pub(super) fn is_red(&self) -> bool {
        self.entries.iter().any(|entry| entry.verdict() == Some(Verdict::Red))
    }

    fn count(&self, verdict: Verdict) -> usize {
        self.entries.iter().filter(|entry| entry.verdict() == Some(verdict)).count()
    }

    /// Returns the report for people.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        let shown: Vec<&Entry> = self.entries.iter().filter(|entry| entry.verdict().is_some()).collect();
        let width = shown.iter().map(|entry| entry.check.name.len()).max().unwrap_or_default();
        for entry in &shown {
            let name = entry.check.name;
            let Outcome { findings, good } = &entry.outcome;
            if let (true, Some(good)) = (findings.is_empty(), good) {
                let _ = writeln!(text, "{:<7} {name:<width$}  {good}", Verdict::Green.name());
            }
            for finding in findings {
                let host = if self.hosts.len() > 1 { format!("{}: ", finding.host) } else { String::new() };
                let _ =
                    writeln!(text, "{:<7} {name:<width$}  {host}{}", finding.verdict.name(), finding.seen);
                let _ = writeln!(text, "        {:<width$}    why:  {}", "", entry.check.why);
                let _ = writeln!(text, "        {:<width$}    mend: {}", "", finding.mend);
            }
        }
        let [red, yellow, green] = [Verdict::Red, Verdict::Yellow, Verdict::Green].map(|v| self.count(v));
        let _ = writeln!(text, "{red} red, {yellow} yellow, {green} green");
        text
    }

    /// Returns the report for programs.
    pub(super) fn json(&self) -> String {
        let finding = |found: &Finding| {
            json!({
                "verdict": found.verdict, "host": found.host, "seen": found.seen, "mend": found.mend,
            })
        };
        let entry = |entry: &Entry| {
            json!({
                "name": entry.check.name,
                "about": entry.check.about,
                "why": entry.check.why,
                "verdict": entry.verdict(),
                "good": entry.outcome.good,
                "findings": entry.outcome.findings.iter().map(finding).collect::<Vec<_>>(),
            })
        };
        let checks: Vec<Value> = self.entries.iter().map(entry).collect();
        let whole = json!({
            "version": 1,
            "hosts": self.hosts,
            "red": self.count(Verdict::Red),
            "yellow": self.count(Verdict::Yellow),
            "green": self.count(Verdict::Green),
            "checks": checks,
        });
        serde_json::to_string_pretty(&whole).map(|text| text + "\n").unwrap_or_default()
    }
}
