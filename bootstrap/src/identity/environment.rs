//! Environment variables of a process.

use std::collections::HashMap;

/// Environment variables, by name.
#[derive(Clone, Debug, Default)]
pub(super) struct Vars(HashMap<String, String>);

impl Vars {
    /// Returns the variables of this process.
    pub(super) fn from_process() -> Vars {
        let text = |(key, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((key.into_string().ok()?, value.into_string().ok()?))
        };
        Vars(std::env::vars_os().filter_map(text).collect())
    }

    #[cfg(test)]
    pub(super) fn from_pairs(pairs: &[(&str, &str)]) -> Vars {
        Vars(pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect())
    }

    /// Returns the trimmed value of a variable that is set and not empty.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|value| value.trim()).filter(|value| !value.is_empty())
    }
}
