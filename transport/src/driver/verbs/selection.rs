//! Selection of devices by name, where no device matrix names them.

use std::{fmt, str::FromStr};

/// Patterns of device names.
///
/// The text form is a list with commas: `rdma_en*,mlx5_0`, or with a `^` before each pattern whose devices
/// are left out: `^rxe*`. A `*` stands for any characters. A device is selected if a pattern matches its
/// name, or there are patterns with `^` only, and if no pattern with `^` matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSelection {
    patterns: Vec<Pattern>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Pattern {
    text: String,
    excludes: bool,
}

impl DeviceSelection {
    /// Whether a device is selected.
    #[must_use]
    pub fn selects(&self, name: &str) -> bool {
        let matches = |excludes: bool| {
            let mut patterns = self.patterns.iter().filter(move |pattern| pattern.excludes == excludes);
            patterns.any(|pattern| matches(&pattern.text, name))
        };
        let names_none = self.patterns.iter().all(|pattern| pattern.excludes);
        (names_none || matches(false)) && !matches(true)
    }
}

/// Whether a pattern, in which `*` stands for any characters, matches all of a name.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(name) = name.strip_prefix(head) else { return false };
    let ends = name.char_indices().map(|(at, _)| at).chain([name.len()]);
    ends.into_iter().any(|at| matches(rest, &name[at..]))
}

impl FromStr for DeviceSelection {
    type Err = String;

    fn from_str(text: &str) -> Result<DeviceSelection, String> {
        let pattern = |word: &str| {
            let word = word.trim();
            let (text, excludes) = word.strip_prefix('^').map_or((word, false), |rest| (rest, true));
            let is_name = !text.is_empty() && !text.contains(['/', '^', ' ']);
            is_name.then(|| Pattern { text: text.to_owned(), excludes })
        };
        let patterns = text.split(',').map(pattern).collect::<Option<Vec<_>>>();
        let patterns =
            patterns.ok_or("expected names of devices with commas between them, e.g. rdma_en*,^rdma_en5")?;
        Ok(DeviceSelection { patterns })
    }
}

impl fmt::Display for DeviceSelection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words =
            self.patterns.iter().map(|one| format!("{}{}", if one.excludes { "^" } else { "" }, one.text));
        f.write_str(&words.collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selected(text: &str) -> Vec<&'static str> {
        let selection: DeviceSelection = text.parse().expect("patterns");
        assert_eq!(selection.to_string().parse(), Ok(selection.clone()));
        let all = ["rdma_en2", "rdma_en5", "mlx5_0", "rxe0"];
        all.into_iter().filter(|name| selection.selects(name)).collect()
    }

    #[test]
    fn devices_are_selected_by_names_patterns_and_exclusions() {
        assert_eq!(selected("mlx5_0,rxe0"), ["mlx5_0", "rxe0"]);
        assert_eq!(selected("rdma_en*"), ["rdma_en2", "rdma_en5"]);
        assert_eq!(selected("rdma_en*, ^rdma_en5"), ["rdma_en2"]);
        assert_eq!(selected("^rxe*,^mlx*"), ["rdma_en2", "rdma_en5"]);
        assert_eq!(selected("*5*"), ["rdma_en5", "mlx5_0"]);
        assert_eq!(selected("*"), selected("^none"));
        assert!(selected("rdma").is_empty());
    }

    #[test]
    fn lists_with_empty_or_strange_names_are_refused() {
        for text in ["", "a,,b", "^", "/dev/x", "a b", "^^a"] {
            assert!(text.parse::<DeviceSelection>().is_err(), "{text:?}");
        }
    }
}
