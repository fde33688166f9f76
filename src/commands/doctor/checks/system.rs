//! Memory, sleep, firewall and names of a machine.

use super::super::check::{Cluster, Host, Outcome};
use inventory::System;

/// Bytes that a rank registers where a device must know its memory beforehand.
const SLAB_BYTES: u64 = 1 << 30;

pub(super) fn inventory(cluster: &Cluster<'_>) -> Outcome {
    let check = |host: &Host<'_>| {
        let problems = host.inventory.problems.iter();
        let mend = "run the command by hand, and report the output if it looks right";
        Some(problems.map(|problem| host.yellow(problem.clone(), mend)).collect())
    };
    cluster.each("all sources could be read", check)
}

pub(super) fn memlock(cluster: &Cluster<'_>) -> Outcome {
    let check = |host: &Host<'_>| {
        let limit = host.inventory.memory.lockable?;
        let seen = format!("{} KiB may be locked", limit >> 10);
        let mend = "ulimit -l unlimited; for good, `* - memlock unlimited` in /etc/security/limits.conf and \
                    LimitMEMLOCK=infinity for sshd";
        let applies = !host.inventory.devices.is_empty();
        applies.then(|| (limit < SLAB_BYTES).then(|| host.red(seen, mend)).into_iter().collect())
    };
    cluster.each("1 GiB or more may be locked", check)
}

pub(super) fn memory(cluster: &Cluster<'_>) -> Outcome {
    let check = |host: &Host<'_>| {
        let free = host.inventory.memory.available?;
        let seen = format!("{} MiB of memory are free, and each rank registers up to 1024 MiB", free >> 20);
        let mend = "end other programs, or set TBCCL_SLAB_BYTES lower, e.g. `-x TBCCL_SLAB_BYTES=256M`";
        Some((free < SLAB_BYTES).then(|| host.yellow(seen, mend)).into_iter().collect())
    };
    cluster.each("more than 1 GiB of memory is free", check)
}

pub(super) fn sleep(cluster: &Cluster<'_>) -> Outcome {
    let check = |host: &Host<'_>| {
        let minutes = host.inventory.sleep_minutes?;
        let seen = format!("the machine sleeps after {minutes} min without a user");
        Some((minutes > 0).then(|| host.yellow(seen, "sudo pmset -a sleep 0")).into_iter().collect())
    };
    cluster.each("the machine never sleeps", check)
}

pub(super) fn firewall(cluster: &Cluster<'_>) -> Outcome {
    let check = |host: &Host<'_>| {
        let name = host.inventory.firewall.as_deref()?;
        let mend = match (host.inventory.system, name) {
            (System::MacOs, _) => {
                "sudo /usr/libexec/ApplicationFirewall/socketfilterfw --unblockapp PATH_OF_TBCCL"
            }
            (_, "ufw") => "sudo ufw allow in on INTERFACE, for the interface of each cable",
            _ => "sudo firewall-cmd --zone=trusted --change-interface=INTERFACE, for each cable",
        };
        Some((!name.is_empty()).then(|| host.yellow(format!("{name} is on"), mend)).into_iter().collect())
    };
    cluster.each("no firewall is on", check)
}

pub(super) fn hostname(cluster: &Cluster<'_>) -> Outcome {
    let check = |host: &Host<'_>| {
        let resolves = host.inventory.resolves_itself?;
        let name = &host.inventory.hostname;
        let mend = format!("echo '127.0.1.1 {name}' | sudo tee -a /etc/hosts");
        let seen = format!("the machine's own name, {name}, has no address");
        Some((!resolves).then(|| host.yellow(seen, mend)).into_iter().collect())
    };
    cluster.each("the machine's own name has an address", check)
}
