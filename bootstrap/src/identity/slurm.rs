//! Rendezvous of the tasks of a Slurm step, derived from the variables that `srun` sets.
//!
//! Tasks of one node meet at a Unix socket, whose name they derive from their user and the step; the kernel
//! tells them each other's user. Tasks of several nodes meet on the first node, at a port that Slurm has
//! reserved for the step, or else one derived from the numbers of job and step.
//!
//! Slurm gives its tasks no secret: every user can list jobs, steps and nodes. So nothing here is one, and
//! tasks of several nodes need `TBCCL_SECRET` in their environment.

use crate::environment::Vars;

/// Display name of Slurm as a launcher.
pub(super) const NAME: &str = "Slurm";

/// Display name of the launchers whose variables Slurm sets as well, with `srun --mpi=pmi2`.
pub(super) const PMI_NAME: &str = "MPICH (Hydra)";

/// Lowest of the derived ports. They are below the ports that systems choose, and apart from Slurm's own.
const FIRST_PORT: u64 = 20_000;

/// Number of derived ports.
const PORTS: u64 = 10_000;

/// Number of consecutive steps of a job whose ports differ from those of the next job.
const STEPS_PER_JOB: u64 = 16;

/// Place where the tasks of a step meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MeetingPlace {
    /// The only node of the step. Contains the step as `CLUSTER/JOB.STEP`.
    OnlyNode(String),
    /// A port of the node of task 0: of the first node, unless `MASTER_ADDR` names another one.
    FirstNode { host: String, port: u16 },
}

/// Returns where the tasks of this process's step meet; `None` if this rank is no task of a step.
///
/// `launcher` is the name of the launcher that gave this process its rank, out of `size`.
///
/// # Errors
/// A sentence with the remedy if this process is a batch script, or if task 0 is not on the first node.
pub(super) fn meeting_place(
    vars: &Vars,
    launcher: &str,
    rank: u32,
    size: u32,
) -> Result<Option<MeetingPlace>, String> {
    if ![NAME, PMI_NAME].contains(&launcher) {
        return Ok(None);
    }
    let (Some(job), Some(step)) = (vars.get("SLURM_JOB_ID"), vars.get("SLURM_STEP_ID")) else {
        return if launcher == NAME && is_batch_script(vars) {
            Err(format!(
                "this process is the batch script of a Slurm job with {size} tasks, and no task of a step: \
                 start the program with `srun`, as in `srun python train.py`, or with `tbccl run`"
            ))
        } else {
            Ok(None)
        };
    };
    // A launcher that srun has started, such as Hydra's proxy, passes its own variables on to its ranks.
    let is = |name: &str, value: u32| vars.get(name).and_then(|text| text.parse().ok()) == Some(value);
    if !is("SLURM_PROCID", rank) || !is("SLURM_STEP_NUM_TASKS", size) {
        return Ok(None);
    }
    if is("SLURM_STEP_NUM_NODES", 1) {
        let cluster = vars.get("SLURM_CLUSTER_NAME").unwrap_or_default();
        return Ok(Some(MeetingPlace::OnlyNode(format!("{cluster}/{job}.{step}"))));
    }
    let master = vars.get("MASTER_ADDR");
    if master.is_none() && rank == 0 && vars.get("SLURM_NODEID").is_some_and(|node| node != "0") {
        return Err(format!(
            "task 0 of step {job}.{step} is not on the first node of the step, where the other tasks look \
             for it: set TBCCL_ROOT=HOST:PORT on all tasks, with the node of task 0 and a free port there"
        ));
    }
    let host = master.map(str::to_owned).or_else(|| first_node(vars));
    Ok(host.zip(port(vars, job, step)).map(|(host, port)| MeetingPlace::FirstNode { host, port }))
}

/// Whether this process is in a Slurm job, but was not started by `srun`.
pub(super) fn is_batch_script(vars: &Vars) -> bool {
    vars.get("SLURM_JOB_ID").is_some() && vars.get("SLURM_STEP_ID").is_none()
}

/// Returns the first node of the step, or of the job.
pub(super) fn first_node(vars: &Vars) -> Option<String> {
    let list = ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"].into_iter().find_map(|name| vars.get(name));
    list.and_then(first_host)
}

/// Returns the port of the step: a reserved one (`MpiParams=ports=...`), or one derived from its number.
fn port(vars: &Vars, job: &str, step: &str) -> Option<u16> {
    if let Some(reserved) = vars.get("SLURM_STEP_RESV_PORTS") {
        return reserved.split(['-', ',']).next()?.parse().ok();
    }
    let (job, step): (u64, u64) = (job.parse().ok()?, step.parse().ok()?);
    let offset = job.wrapping_mul(STEPS_PER_JOB).wrapping_add(step) % PORTS;
    u16::try_from(FIRST_PORT + offset).ok()
}

/// Returns the first host of a list in Slurm's notation: `node[07-09,12],other`.
fn first_host(list: &str) -> Option<String> {
    let end = list.find([',', '[']).unwrap_or(list.len());
    let (name, rest) = list.split_at(end);
    let Some(ranges) = rest.strip_prefix('[') else {
        return (!name.is_empty()).then(|| name.to_owned());
    };
    let (ranges, tail) = ranges.split_once(']')?;
    let number = ranges.split([',', '-']).next().filter(|number| !number.is_empty())?;
    let suffix = tail.split(',').next().unwrap_or_default();
    Some(format!("{name}{number}{suffix}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Variables of task 1 of two on two nodes.
    const STEP: [(&str, &str); 8] = [
        ("SLURM_CLUSTER_NAME", "c"),
        ("SLURM_JOB_ID", "700"),
        ("SLURM_STEP_ID", "3"),
        ("SLURM_PROCID", "1"),
        ("SLURM_STEP_NUM_TASKS", "2"),
        ("SLURM_STEP_NUM_NODES", "2"),
        ("SLURM_NODEID", "1"),
        ("SLURM_STEP_NODELIST", "n[03-04]"),
    ];

    /// Returns where task 1 of `STEP` meets the others, with some variables changed.
    fn place_with(more: &[(&str, &str)]) -> Result<Option<MeetingPlace>, String> {
        meeting_place(&Vars::from_pairs(&[&STEP[..], more].concat()), NAME, 1, 2)
    }

    fn at(host: &str, port: u16) -> Result<Option<MeetingPlace>, String> {
        Ok(Some(MeetingPlace::FirstNode { host: host.to_owned(), port }))
    }

    #[test]
    fn tasks_of_several_nodes_meet_on_the_first_one_at_a_port_of_their_step() {
        assert_eq!(place_with(&[]), at("n03", 21_203));
        assert_eq!(place_with(&[("SLURM_STEP_ID", "4")]), at("n03", 21_204));
        assert_eq!(place_with(&[("SLURM_JOB_ID", "701")]), at("n03", 21_219));
        assert_eq!(place_with(&[("SLURM_STEP_RESV_PORTS", "12000-12001")]), at("n03", 12_000));
        assert_eq!(place_with(&[("SLURM_STEP_RESV_PORTS", "12007")]), at("n03", 12_007));
        assert_eq!(place_with(&[("MASTER_ADDR", "10.0.0.3")]), at("10.0.0.3", 21_203));
        let largest = [("SLURM_JOB_ID", "18446744073709551615"), ("SLURM_STEP_ID", "4294967294")];
        assert!(matches!(
            place_with(&largest),
            Ok(Some(MeetingPlace::FirstNode { port: 20_000..30_000, .. }))
        ));
    }

    #[test]
    fn tasks_of_one_node_meet_by_the_name_of_their_step() {
        let place = place_with(&[("SLURM_STEP_NUM_NODES", "1")]);
        assert_eq!(place, Ok(Some(MeetingPlace::OnlyNode("c/700.3".into()))));
    }

    #[test]
    fn ranks_with_variables_of_pmi_are_tasks_only_if_they_have_the_same_number() {
        let vars = Vars::from_pairs(&STEP);
        let place = |launcher, rank| meeting_place(&vars, launcher, rank, 2);
        assert_eq!(place(PMI_NAME, 1), at("n03", 21_203));
        assert_eq!(place(PMI_NAME, 0), Ok(None));
        assert_eq!(place("torchrun", 1), Ok(None));
    }

    #[test]
    fn a_batch_script_and_a_task_0_elsewhere_are_refused_with_the_remedy() {
        let script = [("SLURM_JOB_ID", "7"), ("SLURM_PROCID", "0"), ("SLURM_NTASKS", "2")];
        let error = meeting_place(&Vars::from_pairs(&script), NAME, 0, 2).expect_err("a script");
        assert!(error.contains("batch script") && error.contains("`srun"), "{error}");
        let elsewhere = Vars::from_pairs(&[&STEP[..], &[("SLURM_PROCID", "0")]].concat());
        let error = meeting_place(&elsewhere, NAME, 0, 2).expect_err("on the second node");
        assert!(error.contains("task 0 of step 700.3") && error.contains("TBCCL_ROOT=HOST:PORT"), "{error}");
    }

    #[test]
    fn the_first_host_of_slurms_lists() {
        for (list, first) in [
            ("node1", Some("node1")),
            ("a,b[1-2]", Some("a")),
            ("node[07-09,12],other", Some("node07")),
            ("r[3]c,x", Some("r3c")),
            ("n[5,7]", Some("n5")),
            ("", None),
            ("n[", None),
            ("n[]", None),
        ] {
            assert_eq!(first_host(list).as_deref(), first, "{list}");
        }
    }
}
