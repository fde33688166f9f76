//! Known launchers and the environment variables by which they tell a process its rank.

use super::{mlx, slurm};
use crate::environment::Vars;

/// A launcher, and the variables that it sets.
#[derive(Debug)]
pub(super) struct Launcher {
    /// Display name.
    pub(super) name: &'static str,
    /// Variable with the rank.
    pub(super) rank: &'static str,
    /// Variables with the number of ranks; the first that is set counts.
    pub(super) size: &'static [&'static str],
}

/// Known launchers. The first that has set both variables counts.
///
/// Order matters: agents of torchrun may be started by Slurm or MPI, and MPI by Slurm. `mlx.launch` starts
/// programs and no launchers, and any of the others may have started it.
pub(super) const LAUNCHERS: &[Launcher] = &[
    Launcher { name: "tbccl run", rank: "TBCCL_RANK", size: &["TBCCL_SIZE"] },
    Launcher { name: mlx::JACCL_NAME, rank: mlx::JACCL_RANK, size: &[] },
    Launcher { name: mlx::NAME, rank: mlx::RANK, size: &[mlx::SIZE] },
    Launcher { name: "torchrun", rank: "RANK", size: &["WORLD_SIZE"] },
    Launcher { name: "Open MPI", rank: "OMPI_COMM_WORLD_RANK", size: &["OMPI_COMM_WORLD_SIZE"] },
    Launcher { name: slurm::PMI_NAME, rank: "PMI_RANK", size: &["PMI_SIZE"] },
    Launcher { name: slurm::NAME, rank: "SLURM_PROCID", size: &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"] },
];

/// Rank and size as a launcher sets them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LaunchedRank {
    /// Name of the launcher.
    pub(super) launcher: &'static str,
    pub(super) rank: u32,
    pub(super) size: u32,
}

/// Returns the rank and size of this process.
///
/// # Errors
/// A sentence that names the missing or malformed variables, and how to start the program instead.
pub(super) fn detect(vars: &Vars) -> Result<LaunchedRank, String> {
    // Variables of tbccl take precedence over those of other launchers.
    let ours = &LAUNCHERS[0];
    let is_own = vars.get(ours.rank).is_some() || ours.size.iter().any(|name| vars.get(name).is_some());
    let candidates = if is_own { &LAUNCHERS[..1] } else { LAUNCHERS };
    for launcher in candidates {
        let Some(rank) = vars.get(launcher.rank) else { continue };
        let rank = (launcher.rank, rank);
        if let Some(size) = launcher.size.iter().find_map(|name| Some((*name, vars.get(name)?))) {
            return parse_rank(launcher.name, rank, size);
        }
        if [mlx::NAME, mlx::JACCL_NAME].contains(&launcher.name)
            && let Some(rank_list) = mlx::rank_list(vars)?
        {
            return parse_rank(launcher.name, rank, (rank_list.variable, &rank_list.ranks));
        }
    }
    Err(missing_variables(vars, candidates))
}

/// Returns the launcher of which at least one variable is set.
///
/// A process in a Slurm job that `srun` has not started has no launcher: the job sets the number of tasks,
/// and in its batch script a rank, too.
pub(super) fn find_launcher(vars: &Vars) -> Option<&'static str> {
    let is_set = |name: &&str| vars.get(name).is_some();
    let launcher = LAUNCHERS.iter().find(|l| is_set(&l.rank) || l.size.iter().any(is_set))?;
    (launcher.name != slurm::NAME || !slurm::is_batch_script(vars)).then_some(launcher.name)
}

fn parse_rank(
    launcher: &'static str,
    rank: (&str, &str),
    size: (&str, &str),
) -> Result<LaunchedRank, String> {
    let number = |(name, text): (&str, &str), what: &str| {
        text.parse::<u32>().map_err(|_| format!("{name}={text} is not {what}"))
    };
    let parse_rank =
        LaunchedRank { launcher, rank: number(rank, "a rank")?, size: number(size, "a number of ranks")? };
    if parse_rank.rank >= parse_rank.size {
        let ((rank_name, rank), (size_name, size)) = (rank, size);
        return Err(format!("{rank_name}={rank} is not one of 0..{size} ({size_name})"));
    }
    Ok(parse_rank)
}

fn missing_variables(vars: &Vars, candidates: &[Launcher]) -> String {
    const INSTEAD: &str =
        "start the program with `tbccl run -n RANKS -- PROGRAM`, or use Communicator::local";
    let half = candidates.iter().find_map(|launcher| {
        let has_size = launcher.size.iter().any(|name| vars.get(name).is_some());
        match (vars.get(launcher.rank).is_some(), has_size) {
            (true, false) => Some((launcher.rank, launcher.size.first().copied().unwrap_or_default())),
            (false, true) => Some((launcher.size[0], launcher.rank)),
            _ => None,
        }
    });
    match half {
        Some((_, "SLURM_PROCID")) if slurm::is_batch_script(vars) => {
            format!("this process is in a Slurm job without srun: use `srun PROGRAM`, or {INSTEAD}")
        }
        Some((mlx::JACCL_RANK, _)) => {
            format!("{} is set and JACCL_IBV_DEVICES is not set: {INSTEAD}", mlx::JACCL_RANK)
        }
        Some((mlx::RANK, missing)) => format!(
            "{} is set, but neither {missing} nor MLX_HOSTFILE nor MLX_IBV_DEVICES, one of which \
             mlx.launch sets as well: {INSTEAD}",
            mlx::RANK
        ),
        Some((found, missing)) => format!("{found} is set and {missing} is not set: {INSTEAD}"),
        None => format!(
            "TBCCL_RANK is not set, nor are the variables of mlx.launch, torchrun, Open MPI, \
             MPICH and Slurm: {INSTEAD}"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detect_from(pairs: &[(&str, &str)]) -> Result<LaunchedRank, String> {
        detect(&Vars::from_pairs(pairs))
    }

    #[test]
    fn each_launcher_is_understood() {
        for launcher in LAUNCHERS {
            for size in launcher.size {
                let found = detect_from(&[(launcher.rank, "3"), (size, "5")]);
                assert_eq!(found, Ok(LaunchedRank { launcher: launcher.name, rank: 3, size: 5 }));
            }
        }
    }

    #[test]
    fn what_is_nearer_to_the_program_counts() {
        let srun = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "2")];
        let mpi = [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "3")];
        let torch = [("RANK", "2"), ("WORLD_SIZE", "4")];
        let ours = [("TBCCL_RANK", "3"), ("TBCCL_SIZE", "5")];
        let mlx = [("MLX_RANK", "4"), ("MLX_WORLD_SIZE", "6")];
        let sizes = [2, 3, 4, 6, 5];
        let mut all = Vec::new();
        assert_eq!(find_launcher(&Vars::from_pairs(&all)), None);
        let script = [("SLURM_JOB_ID", "7"), ("SLURM_PROCID", "0"), ("SLURM_NTASKS", "2")];
        assert_eq!(find_launcher(&Vars::from_pairs(&script)), None, "a batch script");
        assert_eq!(find_launcher(&Vars::from_pairs(&srun)), Some(slurm::NAME));
        for (more, size) in [srun, mpi, torch, mlx, ours].into_iter().zip(sizes) {
            all.extend(more);
            assert_eq!(detect_from(&all).expect("a rank").size, size);
        }
    }

    #[test]
    fn what_is_missing_or_senseless_is_said_by_name() {
        for (pairs, says) in [
            (&[][..], "TBCCL_RANK is not set, nor are the variables of mlx.launch, torchrun"),
            (
                &[("TBCCL_SIZE", "2"), ("RANK", "0"), ("WORLD_SIZE", "2")],
                "TBCCL_SIZE is set and TBCCL_RANK is not set",
            ),
            (&[("RANK", "1")], "RANK is set and WORLD_SIZE is not set"),
            (
                &[("SLURM_JOB_ID", "7"), ("SLURM_NTASKS", "2")],
                "in a Slurm job without srun: use `srun PROGRAM`",
            ),
            (&[("PMI_SIZE", "2")], "PMI_SIZE is set and PMI_RANK is not set"),
            (
                &[("MLX_RANK", "1")],
                "MLX_RANK is set, but neither MLX_WORLD_SIZE nor MLX_HOSTFILE nor MLX_IBV_DEVICES",
            ),
            (&[("MLX_RANK", "1"), ("MLX_HOSTFILE", "/nowhere")], "MLX_HOSTFILE=/nowhere: "),
            (&[("JACCL_RANK", "1")], "JACCL_RANK is set and JACCL_IBV_DEVICES is not set"),
            (&[("JACCL_RANK", "1"), ("MLX_IBV_DEVICES", "/nowhere")], "MLX_IBV_DEVICES=/nowhere: "),
            (&[("TBCCL_RANK", "2"), ("TBCCL_SIZE", "2")], "TBCCL_RANK=2 is not one of 0..2 (TBCCL_SIZE)"),
            (&[("RANK", "one"), ("WORLD_SIZE", "2")], "RANK=one is not a rank"),
            (&[("RANK", "0"), ("WORLD_SIZE", "-2")], "WORLD_SIZE=-2 is not a number of ranks"),
        ] {
            let error = detect_from(pairs).expect_err(says);
            assert!(error.contains(says), "{error}");
        }
    }
}
