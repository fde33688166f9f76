//! What a rank learns from its environment.

use super::LaunchError;
use std::ffi::OsString;

/// The variables that make a rank a rank of this job. They can't be replaced by the user.
const OURS: [&str; 6] = [
    "TBCCL_RANK",
    "TBCCL_SIZE",
    "TBCCL_LOCAL_RANK",
    "TBCCL_LOCAL_SIZE",
    "TBCCL_NODE_RANK",
    "TBCCL_BOOTSTRAP",
];

/// The variables of one rank of a job on one host: ours, and those that PyTorch's and other launchers set.
pub(super) fn of_rank(rank: u32, ranks: u32, bootstrap: &str) -> Vec<(&'static str, String)> {
    let values = [rank, ranks, rank, ranks, 0].map(|number| number.to_string());
    let ours = OURS.into_iter().zip(values.into_iter().chain([bootstrap.to_owned()]));
    let theirs = [("RANK", rank), ("WORLD_SIZE", ranks), ("LOCAL_RANK", rank), ("LOCAL_WORLD_SIZE", ranks)];
    ours.chain(theirs.map(|(key, number)| (key, number.to_string()))).collect()
}

/// Refuses a user's variables that would take a rank out of its job.
pub(super) fn check(env: &[(OsString, OsString)]) -> Result<(), LaunchError> {
    match env.iter().find(|(key, _)| OURS.iter().any(|ours| key == ours)) {
        Some((key, _)) => Err(LaunchError::Reserved(key.clone())),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_variable_has_its_own_value() {
        let env = of_rank(2, 5, "unix:abc");
        let get = |key| env.iter().find(|(k, _)| *k == key).map(|(_, value)| value.as_str());
        assert_eq!(get("TBCCL_RANK"), Some("2"));
        assert_eq!(get("TBCCL_SIZE"), Some("5"));
        assert_eq!(get("TBCCL_NODE_RANK"), Some("0"));
        assert_eq!(get("TBCCL_BOOTSTRAP"), Some("unix:abc"));
        assert_eq!(get("LOCAL_RANK"), Some("2"));
        assert_eq!(get("LOCAL_WORLD_SIZE"), Some("5"));
        assert_eq!(env.len(), 10);
    }

    #[test]
    fn a_user_may_replace_theirs_but_not_ours() {
        let pair = |key: &str| [(OsString::from(key), OsString::from("7"))];
        assert!(check(&pair("RANK")).is_ok());
        assert!(check(&pair("TBCCL_TIMEOUT")).is_ok());
        let error = check(&pair("TBCCL_RANK")).expect_err("ours");
        assert!(error.to_string().contains("TBCCL_RANK"), "{error}");
    }
}
