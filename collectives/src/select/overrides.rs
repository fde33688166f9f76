//! Algorithms that a person configures, by name and by the rules of a file. They take precedence over every
//! other source.
//!
//! Names: `ring,mesh` selects the first listed algorithm that the collective has and that can do the call;
//! `^ring,chain` excludes the listed algorithms. A collective with none of the names is selected as usual.
//!
//! Rules: the first one that matches decides.
//!
//! ```toml
//! version = 1
//!
//! [[rule]]
//! collective = "all_reduce"
//! bytes = "0..64K"        # of one block, both ends included; default: any
//! ranks = "2..4"          # likewise
//! algorithm = "mesh"
//! segments = 1            # default: selected by size
//! ```
//!
//! A rule whose algorithm cannot do the call is an error: skipping it would hide a mistake in the file.

use super::Call;
use crate::plan::{ALGORITHMS, algorithm};
use crate::{Collective, MAX_SEGMENTS, PlanError, UnknownName, parse_bytes};
use serde::Deserialize;
use std::ops::RangeInclusive;
use thiserror::Error;
use toml::Spanned;

/// A list of algorithm names, requested or excluded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    names: Vec<String>,
    /// Whether the names are excluded rather than requested.
    excluded: bool,
}

/// The configured algorithms.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// Requested or excluded names.
    pub names: Names,
    /// Rules; the first one that matches a call decides.
    pub rules: Vec<Rule>,
}

/// A rule of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The collective that the rule applies to.
    pub collective: Collective,
    /// Bytes of one block, both ends included.
    pub bytes: RangeInclusive<u64>,
    /// Numbers of ranks, both ends included.
    pub ranks: RangeInclusive<u32>,
    /// The algorithm to use.
    pub algorithm: &'static str,
    /// Segments per chunk; 0 selects by size.
    pub segments: u32,
}

/// The error in a rules file.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line {line}: {message}")]
pub struct RulesError {
    /// Line number, counted from 1.
    pub line: usize,
    /// The error message.
    pub message: String,
}

impl Names {
    /// Parses `ring,mesh` or `^ring,mesh`; `^` may also precede every name. Empty text requests nothing.
    ///
    /// # Errors
    /// [`UnknownName`] for a name that no collective has an algorithm of.
    pub fn parse(text: &str) -> Result<Names, UnknownName> {
        let (excluded, list) = match text.trim().strip_prefix('^') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let names: Vec<String> = list
            .split(',')
            .map(|name| name.trim().to_lowercase().replace('-', "_"))
            .map(|name| if excluded { name.trim_start_matches('^').trim().to_owned() } else { name })
            .filter(|name| !name.is_empty())
            .collect();
        for name in &names {
            if !ALGORITHMS.iter().any(|algorithm| algorithm.name == name) {
                let mut known: Vec<_> = ALGORITHMS.iter().map(|algorithm| algorithm.name).collect();
                known.sort_unstable();
                known.dedup();
                // A `^` within a list of requested names: the list must be excluded as a whole or not at all.
                let kind = if name.starts_with('^') {
                    "algorithm (`^` stands before the first name and excludes them all)"
                } else {
                    "algorithm"
                };
                return Err(UnknownName::new(kind, name, known));
            }
        }
        Ok(Names { names, excluded })
    }

    /// Whether selection may choose the algorithm `name` when nothing requests it.
    #[must_use]
    pub fn is_allowed(&self, name: &str) -> bool {
        !self.excluded || self.names.iter().all(|excluded| excluded != name)
    }

    /// Returns the requested names that `collective` has, in order.
    pub fn requested(&self, collective: Collective) -> impl Iterator<Item = &'static str> {
        let names = self.names.iter().filter(|_| !self.excluded);
        names.filter_map(move |name| algorithm(collective, name).ok()).map(|algorithm| algorithm.name)
    }

    /// Whether the list has no names.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }
}

impl std::fmt::Display for Names {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{}", if self.excluded { "^" } else { "" }, self.names.join(","))
    }
}

impl Rule {
    /// Whether the rule applies to `call`.
    #[must_use]
    pub fn matches(&self, call: Call) -> bool {
        self.collective == call.collective
            && self.bytes.contains(&call.block_bytes)
            && self.ranks.contains(&call.ranks)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: Spanned<u32>,
    #[serde(default)]
    rule: Vec<RuleForm>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleForm {
    collective: Spanned<String>,
    bytes: Option<Spanned<String>>,
    ranks: Option<Spanned<String>>,
    algorithm: Spanned<String>,
    segments: Option<Spanned<u32>>,
}

impl Overrides {
    /// Parses the rules of a file.
    ///
    /// # Errors
    /// [`RulesError`] with the line of the first error.
    pub fn rules_from_toml(text: &str) -> Result<Vec<Rule>, RulesError> {
        let error_at = |offset: usize, message: String| RulesError {
            line: text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1,
            message,
        };
        let file: File = toml::from_str(text).map_err(|error| {
            error_at(error.span().map_or(0, |span| span.start), error.message().to_owned())
        })?;
        if *file.version.get_ref() != 1 {
            let message = format!("version {} is not known; this program reads 1", file.version.get_ref());
            return Err(error_at(file.version.span().start, message));
        }
        let rule = |form: RuleForm| {
            let collective = form.collective.get_ref().parse::<Collective>();
            let collective =
                collective.map_err(|error| error_at(form.collective.span().start, error.to_string()))?;
            let found = algorithm(collective, form.algorithm.get_ref())
                .map_err(|error| error_at(form.algorithm.span().start, error.to_string()))?;
            let bytes = form.bytes.map_or(Ok(0..=u64::MAX), |text| {
                range(text.get_ref(), 0, u64::MAX, parse_bytes)
                    .map_err(|error| error_at(text.span().start, error))
            })?;
            let ranks = form.ranks.map_or(Ok(1..=u32::MAX), |text| {
                let number =
                    |text: &str| text.parse().map_err(|_| format!("`{text}` is not a number of ranks"));
                range(text.get_ref(), 1, u32::MAX, number).map_err(|error| error_at(text.span().start, error))
            })?;
            let segments = form.segments.map_or(Ok(0), |segments| match *segments.get_ref() {
                requested @ 1..=MAX_SEGMENTS => Ok(requested),
                requested => {
                    let error = PlanError::Segments { collective, segments: requested };
                    Err(error_at(segments.span().start, error.to_string()))
                }
            })?;
            Ok(Rule { collective, bytes, ranks, algorithm: found.name, segments })
        };
        file.rule.into_iter().map(rule).collect()
    }
}

/// Parses `4..64`, `..64`, `4..` or `4`.
fn range<T: Copy + PartialOrd>(
    text: &str,
    lowest: T,
    highest: T,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<RangeInclusive<T>, String> {
    let end = |text: &str, default: T| if text.is_empty() { Ok(default) } else { parse(text) };
    let (first, last) = match text.split_once("..") {
        Some((first, last)) => (end(first.trim(), lowest)?, end(last.trim(), highest)?),
        None => (parse(text.trim())?, parse(text.trim())?),
    };
    if first > last {
        return Err(format!("`{text}` is empty: its first end is above its last"));
    }
    Ok(first..=last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_in_order_or_left_out() {
        let names = Names::parse("ring, chain").expect("known");
        assert!(names.requested(Collective::Broadcast).eq(["chain"]));
        assert!(names.requested(Collective::AllReduce).eq(["ring"]));
        assert!(names.is_allowed("mesh"));
        let names = Names::parse("^Ring,double-binary-tree").expect("known");
        assert_eq!(names.to_string(), "^ring,double_binary_tree");
        assert_eq!(names.requested(Collective::AllReduce).count(), 0);
        assert!(!names.is_allowed("ring") && names.is_allowed("mesh"));
        assert_eq!(Names::parse("^ring, ^mesh").expect("known").to_string(), "^ring,mesh");
        let mixed = Names::parse("ring,^mesh").expect_err("what is wanted of the others?").to_string();
        assert!(mixed.contains("`^` stands before the first name"), "{mixed}");
        assert!(Names::parse("").expect("nothing").is_empty());
        let error = Names::parse("^rign").expect_err("unknown").to_string();
        assert!(error.contains("did you mean `ring`?"), "{error}");
    }

    #[test]
    fn the_first_rule_that_matches_is_found() {
        let text = r#"
            version = 1
            [[rule]]
            collective = "all_reduce"
            bytes = "..64K"
            ranks = "2..4"
            algorithm = "mesh"
            segments = 1
            [[rule]]
            collective = "allreduce"
            algorithm = "ring"
        "#;
        let rules = Overrides::rules_from_toml(text).expect("good rules");
        let of = |ranks, block_bytes| {
            let call = Call { collective: Collective::AllReduce, ranks, block_bytes };
            rules.iter().find(|rule| rule.matches(call)).map(|rule| (rule.algorithm, rule.segments))
        };
        assert_eq!(of(4, 64 << 10), Some(("mesh", 1)));
        assert_eq!(of(4, (64 << 10) + 1), Some(("ring", 0)));
        assert_eq!(of(5, 4), Some(("ring", 0)));
        let barrier = Call { collective: Collective::Barrier, ranks: 4, block_bytes: 0 };
        assert!(!rules.iter().any(|rule| rule.matches(barrier)));
    }

    #[test]
    fn what_is_wrong_with_rules_is_said_with_the_line() {
        let rule = |lines: &str| format!("version = 1\n[[rule]]\n{lines}\n");
        for (text, line, word) in [
            ("version = 2".to_owned(), 1, "reads 1"),
            (rule("collective = \"all_redcue\"\nalgorithm = \"ring\""), 3, "did you mean `all_reduce`"),
            (rule("collective = \"barrier\"\nalgorithm = \"torus\""), 4, "torus"),
            (rule("collective = \"barrier\"\nalgorithm = \"ring\"\nbytes = \"4Q\""), 5, "size suffix"),
            (rule("collective = \"barrier\"\nalgorithm = \"ring\"\nranks = \"8..4\""), 5, "is empty"),
            (rule("collective = \"barrier\"\nalgorithm = \"ring\"\nsegments = 0"), 5, "segments"),
            (rule("collective = \"barrier\"\nalgorithm = \"ring\"\ncolour = 1"), 5, "unknown field"),
        ] {
            let error = Overrides::rules_from_toml(&text).expect_err("wrong");
            assert_eq!(error.line, line, "{error}");
            assert!(error.message.contains(word), "{error}");
        }
    }
}
