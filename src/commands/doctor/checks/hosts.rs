//! Reaching the hosts, and what they must have in common.

use super::super::check::{Cluster, Finding, Outcome, Verdict};
use topology::Rank;

/// Milliseconds by which clocks may differ; an answer over ssh takes a part of it.
const MAX_SKEW_MS: i64 = 2000;

/// Reports the hosts that gave no inventory.
pub(super) fn ssh(cluster: &Cluster<'_>) -> Outcome {
    let failed = cluster.surveyed.iter().filter_map(|host| Some((host, host.inventory.as_ref().err()?)));
    let finding = |(host, why): (&crate::commands::survey::Surveyed, &String)| Finding {
        verdict: Verdict::Red,
        host: host.name.clone(),
        seen: why.clone(),
        mend: mend(&host.name, why),
    };
    let findings = failed.map(finding).collect();
    let good = cluster.has_several().then(|| format!("all {} hosts answer", cluster.surveyed.len()));
    Outcome { findings, good }
}

/// Returns the remedy for a host that does not answer.
fn mend(host: &str, why: &str) -> String {
    if why.contains("Could not resolve hostname") {
        format!("add {host} to /etc/hosts or ~/.ssh/config, or write its address in the hostfile")
    } else if why.contains("Permission denied") {
        format!("ssh-copy-id {host}")
    } else if why.contains("Host key verification failed") {
        format!("ssh {host} true, and accept the key if it is the right one")
    } else if why.contains("tbccl in PATH") || why.contains("check --tbccl") {
        format!("install tbccl on {host}, or name its path with --tbccl")
    } else if why.contains("this tbccl") || why.contains("unknown command") || why.contains("inventory") {
        format!("install the same tbccl on {host} as here ({})", env!("CARGO_PKG_VERSION"))
    } else {
        format!("ssh -v {host} true")
    }
}

pub(super) fn version(cluster: &Cluster<'_>) -> Outcome {
    let ours = env!("CARGO_PKG_VERSION");
    let check = |host: &super::super::check::Host<'_>| {
        let theirs = host.inventory.tbccl.as_str();
        let differs = theirs != ours;
        let seen = format!("its tbccl is {theirs}, and this one is {ours}");
        let mend = "install the same version on all hosts, or name another with --tbccl";
        Some(differs.then(|| host.red(seen, mend)).into_iter().collect())
    };
    cluster.each(&format!("tbccl {ours}"), check)
}

pub(super) fn clock(cluster: &Cluster<'_>) -> Outcome {
    let skewed = cluster.surveyed.iter().enumerate().filter_map(|(at, host)| {
        let skew = host.skew_ms.filter(|skew| skew.abs() > MAX_SKEW_MS)?;
        let way = if skew > 0 { "ahead of" } else { "behind" };
        let seen = format!("its clock is {:.1} s {way} this host's", skew.abs() as f64 / 1000.0);
        let mend = match cluster.host(at).inventory.system {
            inventory::System::MacOs => "sudo sntp -sS time.apple.com",
            _ => "sudo timedatectl set-ntp true",
        };
        Some(cluster.host(at).yellow(seen, mend))
    });
    let findings = skewed.collect();
    let is_known = cluster.surveyed.iter().any(|host| host.skew_ms.is_some());
    Outcome { findings, good: is_known.then(|| "clocks differ by less than 2 s".to_owned()) }
}

/// Compares the hostfile's devices with the cables.
pub(super) fn cable_map(cluster: &Cluster<'_>) -> Outcome {
    let Some(matrix) = cluster.devices else { return Outcome::default() };
    let hosts = cluster.surveyed.len();
    let mut findings = Vec::new();
    for (a, b) in (0..hosts).flat_map(|a| (0..hosts).map(move |b| (a, b))).filter(|(a, b)| a != b) {
        let (Ok(row), Ok(column)) = (u32::try_from(a), u32::try_from(b)) else { continue };
        for device in matrix.rails(Rank(row), Rank(column)) {
            findings.extend(misplaced(cluster, a, b, device));
        }
    }
    Outcome { findings, good: Some("all devices of the hostfile lead where it says".to_owned()) }
}

/// Returns a finding if the device of host `a`, which should lead to host `b`, is known to lead elsewhere.
fn misplaced(cluster: &Cluster<'_>, a: usize, b: usize, device: &str) -> Option<Finding> {
    let host = cluster.host(a);
    let at = host.inventory.ports.iter().position(|port| port.device.as_deref() == Some(device))?;
    let port = &host.inventory.ports[at];
    let own = inventory::End { host: a, port: at };
    let cable = cluster.graph.cables.iter().find(|cable| [cable.low, cable.high].contains(&own));
    let leads_to = cable.map(|cable| if cable.low == own { cable.high.host } else { cable.low.host });
    let actual = match (leads_to, &port.partner) {
        (Some(other), _) if other == b => return None,
        (Some(other), _) => format!("leads to {}", cluster.surveyed[other].name),
        (None, Some(partner)) => format!("leads to `{}`, which is none of the hosts", partner.name),
        (None, None) => "has no cable".to_owned(),
    };
    let seen = format!("the hostfile says that {device} leads to {}; it {actual}", cluster.surveyed[b].name);
    Some(host.red(seen, "tbccl config --hosts LIST -o HOSTFILE, or move the cable"))
}
