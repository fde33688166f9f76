//! Filters: which events are logged, by target and level.

use crate::target;
use std::{fmt, str::FromStr};
use thiserror::Error;
use tracing::{Level, level_filters::LevelFilter};
use tracing_subscriber::filter::Targets;

/// Names of levels, as filters have them.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// Events of a log, such as `info` or `warn,tbccl::verbs=debug`: a level, and levels of targets.
#[derive(Clone, Debug)]
pub struct Filter {
    text: String,
    targets: Targets,
}

/// The error of a filter's text.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{part}` is neither a level nor TARGET=LEVEL{}; levels: {}; targets: tbccl, {}",
    suggestion(*nearest), LEVELS.join(", "), target::ALL.join(", "))]
pub struct FilterError {
    /// The part that is not understood.
    part: String,
    /// The valid name that is most similar, if one is similar enough.
    nearest: Option<&'static str>,
}

fn suggestion(nearest: Option<&str>) -> String {
    nearest.map(|name| format!(", did you mean `{name}`?")).unwrap_or_default()
}

impl Filter {
    /// Whether events of a target and level pass.
    #[must_use]
    pub fn passes(&self, target: &str, level: &Level) -> bool {
        self.targets.would_enable(target, level)
    }

    /// Returns the most verbose level that passes for any target.
    pub(crate) fn max_level(&self) -> LevelFilter {
        let of_targets = self.targets.iter().map(|(_, level)| level);
        of_targets.chain(self.targets.default_level()).max().unwrap_or(LevelFilter::OFF)
    }
}

impl PartialEq for Filter {
    fn eq(&self, other: &Filter) -> bool {
        self.targets == other.targets
    }
}

impl FromStr for Filter {
    type Err = FilterError;

    fn from_str(text: &str) -> Result<Filter, FilterError> {
        let mut targets = Targets::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            targets = match part.split_once('=') {
                None => targets.with_default(level(part, part)?),
                Some((name, wanted)) => targets.with_target(target_of(name, part)?, level(wanted, part)?),
            };
        }
        Ok(Filter { text: text.to_owned(), targets })
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn level(name: &str, part: &str) -> Result<LevelFilter, FilterError> {
    let name = name.trim().to_lowercase();
    if LEVELS.contains(&name.as_str()) {
        return Ok(name.parse().expect("the name of a level"));
    }
    Err(FilterError { part: part.to_owned(), nearest: nearest(&name, &LEVELS) })
}

/// Returns a target, given with or without its prefix.
fn target_of(name: &str, part: &str) -> Result<&'static str, FilterError> {
    let name = name.trim();
    if name == target::ROOT {
        return Ok(target::ROOT);
    }
    let short = name.strip_prefix("tbccl::").unwrap_or(name);
    let found = target::ALL.into_iter().find(|known| known.ends_with(&format!("::{short}")));
    let full = format!("tbccl::{short}");
    found.ok_or_else(|| FilterError { part: part.to_owned(), nearest: nearest(&full, &target::ALL) })
}

fn nearest(given: &str, known: &[&'static str]) -> Option<&'static str> {
    let likeness = |name: &&'static str| (strsim::damerau_levenshtein(given, name), *name);
    known.iter().map(likeness).min().filter(|(distance, _)| *distance <= 2).map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(text: &str) -> Filter {
        text.parse().expect(text)
    }

    #[test]
    fn the_level_of_a_target_takes_precedence_over_the_level_of_all() {
        let filter = filter("warn, tbccl::verbs=debug,tcp=off");
        assert!(filter.passes(target::VERBS, &Level::DEBUG) && !filter.passes(target::VERBS, &Level::TRACE));
        assert!(filter.passes(target::INIT, &Level::WARN) && !filter.passes(target::INIT, &Level::INFO));
        assert!(!filter.passes(target::TCP, &Level::ERROR));
        assert_eq!(filter.max_level(), LevelFilter::DEBUG);
        assert_eq!(Filter::from_str("INFO").expect("a level").max_level(), LevelFilter::INFO);
        assert!(!Filter::from_str("").expect("nothing").passes(target::INIT, &Level::ERROR));
        assert!(Filter::from_str("tbccl=info").expect("all targets").passes(target::SHM, &Level::INFO));
    }

    #[test]
    fn a_misspelt_filter_is_an_error_with_the_nearest_name() {
        for (text, wanted) in [
            ("inof", "`inof` is neither a level nor TARGET=LEVEL, did you mean `info`?"),
            ("info,tbccl::verb=debug", "did you mean `tbccl::verbs`?"),
            ("tbccl::verbs=loud", "`tbccl::verbs=loud` is neither"),
            ("verbs", "levels: off, error, warn, info, debug, trace; targets: tbccl, tbccl::init"),
            ("=info", "`=info` is neither"),
            ("5", "`5` is neither"),
        ] {
            let error = Filter::from_str(text).expect_err(text).to_string();
            assert!(error.contains(wanted), "{error}");
        }
    }
}
