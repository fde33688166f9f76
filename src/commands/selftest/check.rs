//! Checks: the lines of a report.

use serde::{Deserialize, Serialize};

/// The verdict about a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    /// The machine does what tbccl relies on.
    Pass,
    /// The machine does something else.
    Fail,
    /// The check could not be made.
    Unknown,
}

impl Verdict {
    pub(super) fn name(self) -> &'static str {
        match self {
            Verdict::Pass => "pass",
            Verdict::Fail => "fail",
            Verdict::Unknown => "unknown",
        }
    }
}

/// A line of the report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Check {
    /// Name of the check, `section/subject/name`; ranks and probes give the last part only.
    pub(super) name: String,
    pub(super) verdict: Verdict,
    /// Observation, in one line.
    pub(super) text: String,
    /// Advice to the user; empty if there is nothing to do.
    pub(super) remedy: String,
    /// Property that tbccl relies on; empty for checks that measure or list.
    pub(super) relies: String,
    /// Further lines for the file: tables, errors.
    pub(super) details: Vec<String>,
    /// Duration in seconds.
    pub(super) seconds: f64,
}

impl Check {
    fn new(name: impl Into<String>, verdict: Verdict, text: impl Into<String>) -> Check {
        let (name, text) = (name.into(), one_line(&text.into()));
        let (remedy, relies) = (String::new(), String::new());
        Check { name, verdict, text, remedy, relies, details: Vec::new(), seconds: 0.0 }
    }

    pub(super) fn pass(name: impl Into<String>, text: impl Into<String>) -> Check {
        Check::new(name, Verdict::Pass, text)
    }

    pub(super) fn fail(name: impl Into<String>, text: impl Into<String>, remedy: impl Into<String>) -> Check {
        Check { remedy: one_line(&remedy.into()), ..Check::new(name, Verdict::Fail, text) }
    }

    pub(super) fn unknown(
        name: impl Into<String>,
        text: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Check {
        Check { remedy: one_line(&remedy.into()), ..Check::new(name, Verdict::Unknown, text) }
    }

    pub(super) fn with_details(self, details: impl IntoIterator<Item = String>) -> Check {
        Check { details: details.into_iter().collect(), ..self }
    }

    pub(super) fn relying_on(self, relies: &str) -> Check {
        Check { relies: relies.to_owned(), ..self }
    }

    /// Returns the line of the report.
    pub(super) fn line(&self) -> String {
        let remedy = if self.remedy.is_empty() { String::new() } else { format!(": {}", self.remedy) };
        format!("{:<8} {}: {}{remedy}", self.verdict.name(), self.name, self.text)
    }
}

/// Joins the lines of a text.
fn one_line(text: &str) -> String {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_verdict_name_observation_and_remedy() {
        assert_eq!(Check::pass("a/b", "2 of\n 2").line(), "pass     a/b: 2 of; 2");
        assert_eq!(Check::fail("a", "1 of 2", "plug in").line(), "fail     a: 1 of 2: plug in");
        assert_eq!(Check::unknown("a", "no cable", "").line(), "unknown  a: no cable");
    }
}
