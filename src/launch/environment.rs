//! Environment variables of a rank.

use super::LaunchError;
use std::ffi::OsString;
use tbccl::IDENTITY;

/// The identity of a rank within its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RankIdentity {
    /// The rank.
    pub(super) rank: u32,
    /// Ranks of the job.
    pub(super) ranks: u32,
    /// Index of the rank among the ranks of its host.
    pub(super) local_rank: u32,
    /// Ranks on its host.
    pub(super) local_size: u32,
    /// Index of its host; hosts are numbered in the order of their first ranks.
    pub(super) node_rank: u32,
}

impl RankIdentity {
    /// Returns the identity of every rank in rank order, from any numbering of the ranks' hosts.
    pub(super) fn all(host_of: &[usize]) -> Vec<RankIdentity> {
        let mut hosts: Vec<(usize, u32)> = Vec::new();
        let ranks = host_of.len() as u32;
        let mut identities: Vec<RankIdentity> = Vec::with_capacity(host_of.len());
        for (rank, host) in (0..).zip(host_of) {
            let node = hosts.iter().position(|(known, _)| known == host).unwrap_or_else(|| {
                hosts.push((*host, 0));
                hosts.len() - 1
            });
            let local_rank = hosts[node].1;
            hosts[node].1 += 1;
            identities.push(RankIdentity { rank, ranks, local_rank, local_size: 0, node_rank: node as u32 });
        }
        for identity in &mut identities {
            identity.local_size = hosts[identity.node_rank as usize].1;
        }
        identities
    }
}

/// Returns the variables of one rank: tbccl's own, and those that PyTorch, MLX and other launchers set.
pub(super) fn rank_variables(
    identity: RankIdentity,
    bootstrap: &str,
    secret: Option<&str>,
) -> Vec<(&'static str, String)> {
    let RankIdentity { rank, ranks, local_rank, local_size, node_rank } = identity;
    let numbers = [
        ("TBCCL_RANK", rank),
        ("TBCCL_SIZE", ranks),
        ("TBCCL_LOCAL_RANK", local_rank),
        ("TBCCL_LOCAL_SIZE", local_size),
        ("TBCCL_NODE_RANK", node_rank),
        ("RANK", rank),
        ("WORLD_SIZE", ranks),
        ("LOCAL_RANK", local_rank),
        ("LOCAL_WORLD_SIZE", local_size),
        ("GROUP_RANK", node_rank),
        ("MLX_RANK", rank),
        ("MLX_WORLD_SIZE", ranks),
    ];
    let texts = [("TBCCL_BOOTSTRAP", Some(bootstrap)), ("TBCCL_SECRET", secret)];
    let texts = texts.into_iter().filter_map(|(key, value)| Some((key, value?.to_owned())));
    numbers.into_iter().map(|(key, number)| (key, number.to_string())).chain(texts).collect()
}

/// Rejects user variables that would override a rank's identity.
pub(super) fn check(env: &[(OsString, OsString)]) -> Result<(), LaunchError> {
    match env.iter().find(|(key, _)| IDENTITY.iter().any(|ours| key == ours)) {
        Some((key, _)) => Err(LaunchError::Reserved(key.clone())),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_variable_has_its_own_value() {
        let identity = RankIdentity { rank: 2, ranks: 5, local_rank: 1, local_size: 3, node_rank: 4 };
        let env = rank_variables(identity, "unix:abc", Some("word"));
        let get = |key| env.iter().find(|(k, _)| *k == key).map(|(_, value)| value.as_str());
        let expected = [
            ("TBCCL_RANK", "2"),
            ("TBCCL_SIZE", "5"),
            ("TBCCL_LOCAL_RANK", "1"),
            ("TBCCL_LOCAL_SIZE", "3"),
            ("TBCCL_NODE_RANK", "4"),
            ("TBCCL_BOOTSTRAP", "unix:abc"),
            ("TBCCL_SECRET", "word"),
            ("LOCAL_RANK", "1"),
            ("LOCAL_WORLD_SIZE", "3"),
            ("GROUP_RANK", "4"),
            ("MLX_RANK", "2"),
            ("MLX_WORLD_SIZE", "5"),
        ];
        for (key, value) in expected {
            assert_eq!(get(key), Some(value), "{key}");
        }
        assert!(rank_variables(identity, "unix:abc", None).iter().all(|(key, _)| *key != "TBCCL_SECRET"));
    }

    #[test]
    fn hosts_and_their_ranks_are_counted_by_first_appearance() {
        let identities: Vec<_> = RankIdentity::all(&[7, 7, 3, 7])
            .iter()
            .map(|s| (s.node_rank, s.local_rank, s.local_size))
            .collect();
        assert_eq!(identities, [(0, 0, 3), (0, 1, 3), (1, 0, 1), (0, 2, 3)]);
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
