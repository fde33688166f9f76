//! Environment variables of a process, and the secret that they configure.

use crate::{
    Secret,
    error::{Error, Result},
};
use std::{collections::HashMap, path::Path};

/// Environment variables, by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Vars(HashMap<String, String>);

impl Vars {
    /// Returns the variables of this process.
    pub(crate) fn from_process() -> Vars {
        let text = |(key, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((key.into_string().ok()?, value.into_string().ok()?))
        };
        Vars(std::env::vars_os().filter_map(text).collect())
    }

    #[cfg(test)]
    pub(crate) fn from_pairs(pairs: &[(&str, &str)]) -> Vars {
        Vars(pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect())
    }

    /// Returns the trimmed value of a variable that is set and not empty.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|value| value.trim()).filter(|value| !value.is_empty())
    }
}

/// Returns the secret that the environment of this process configures, if it does.
pub(crate) fn secret_of_env() -> Result<Option<Secret>> {
    configured_secret(&Vars::from_process()).map_err(Error::Rendezvous)
}

/// Returns the secret that a variable holds, or a file that one names.
pub(crate) fn configured_secret(vars: &Vars) -> Result<Option<Secret>, String> {
    if let Some(digits) = vars.get("TBCCL_SECRET") {
        return Secret::from_hex(digits).map(Some).map_err(|e| format!("TBCCL_SECRET: {e}"));
    }
    match vars.get("TBCCL_SECRET_FILE") {
        Some(path) => {
            Secret::from_file(Path::new(path)).map(Some).map_err(|e| format!("TBCCL_SECRET_FILE: {e}"))
        }
        None => Ok(None),
    }
}
