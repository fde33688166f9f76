//! Generates all figures and tables of docs/simulation.md, so that none is out of date.

use super::{
    case::{Case, Implementation, Run},
    write,
};
use crate::commands::{CommandError, print};
use collectives::{
    Collective,
    simulate::{Costs, svg},
};
use std::{fmt::Write, fs, path::Path};
use topology::{Cluster, IntraHost, Rank, Speed, Tier};

const MIB: u64 = 1 << 20;
/// Maximum number of segments that is simulated.
const MAX_SEGMENTS: u32 = 64;

/// Returns the measured latency and bandwidth per direction of a Thunderbolt 5 cable.
fn thunderbolt() -> Speed {
    Speed::new(5.0, 75.0)
}

/// A table, with an optional picture.
struct Figure {
    title: &'static str,
    cluster: Cluster,
    bytes: u64,
    /// Algorithms of `all_reduce`; empty for all that the cluster supports.
    algorithms: &'static [&'static str],
    /// The picture: its file, its algorithm, and its segments, few enough to be visible.
    picture: Option<(&'static str, &'static str, u32)>,
}

/// Writes pictures into a folder, and tables to stdout.
pub(super) fn draw(folder: &Path) -> Result<(), CommandError> {
    fs::create_dir_all(folder).map_err(|error| {
        CommandError::new(format_args!("can't make `{}`: {error}; name another folder", folder.display()))
    })?;
    let mut text = String::new();
    for figure in figures()? {
        figure.table(&mut text)?;
        if let Some((file, algorithm, segments)) = figure.picture {
            let case = figure.case(Some(segments));
            let run = case
                .run(Implementation::named(Collective::AllReduce, algorithm)?)
                .map_err(CommandError::new)?;
            let title = format!("{algorithm} in {segments} segments, {}", figure.title);
            write(&folder.join(file), &svg(&run.schedule, &run.outcome, &title))?;
        }
    }
    print(&text);
    Ok(())
}

fn figures() -> Result<Vec<Figure>, CommandError> {
    let mesh = || Cluster::mesh(4, thunderbolt());
    let ring = |hosts| Cluster::ring(hosts, thunderbolt());
    let all: &[&str] = &[];
    let large: &[&str] = &["ring", "bidirectional_ring", "mlx_ring"];
    let many: &[&str] = &["recursive_doubling", "double_binary_tree"];
    let with_ring: &[&str] = &["ring", "recursive_doubling", "double_binary_tree"];
    let figure =
        |title, cluster, bytes, algorithms, picture| Figure { title, cluster, bytes, algorithms, picture };
    let (two_tiers, fat_tree) = (two_tiers()?, fat_tree()?);
    Ok(vec![
        figure(
            "64 MiB, four Macs in a full mesh",
            mesh(),
            64 * MIB,
            all,
            Some(("mesh4-rsag.svg", "rsag_mesh", 4)),
        ),
        figure(
            "64 MiB, four Macs in a full mesh, by JACCL's mesh",
            mesh(),
            64 * MIB,
            &["jaccl_mesh"],
            Some(("mesh4-jaccl.svg", "jaccl_mesh", 4)),
        ),
        figure("4 KiB, four Macs in a full mesh", mesh(), 4 << 10, all, Some(("mesh4-small.svg", "mesh", 1))),
        figure(
            "64 MiB, five Macs in a ring",
            ring(5),
            64 * MIB,
            large,
            Some(("ring5.svg", "bidirectional_ring", 2)),
        ),
        figure("64 MiB, eight Macs in a ring", ring(8), 64 * MIB, large, Some(("ring8.svg", "ring", 2))),
        figure("4 KiB, 64 hosts of 8 ranks in two tiers", two_tiers.clone(), 4 << 10, with_ring, None),
        figure("64 MiB, 64 hosts of 8 ranks in two tiers", two_tiers, 64 * MIB, with_ring, None),
        figure("4 KiB, 4096 ranks in a fat tree", fat_tree.clone(), 4 << 10, many, None),
        figure("64 MiB, 4096 ranks in a fat tree", fat_tree, 64 * MIB, many, None),
    ])
}

/// Returns 64 hosts of 8 ranks, with 16 hosts per switch, whose uplinks have half the bandwidth of the
/// downlinks.
fn two_tiers() -> Result<Cluster, CommandError> {
    let tiers = [
        Tier { hosts: 16, oversubscription: 2.0, latency: 0.0 },
        Tier { hosts: 64, oversubscription: 1.0, latency: 1e-6 },
    ];
    Cluster::switched(64, (8, IntraHost::default()), Speed::new(2.0, 100.0), &tiers)
        .map_err(CommandError::new)
}

/// Returns 4096 hosts in three tiers.
fn fat_tree() -> Result<Cluster, CommandError> {
    let tiers = [
        Tier { hosts: 16, oversubscription: 1.0, latency: 0.0 },
        Tier { hosts: 256, oversubscription: 2.0, latency: 1e-6 },
        Tier { hosts: 4096, oversubscription: 1.0, latency: 1e-6 },
    ];
    Cluster::switched(4096, (1, IntraHost::default()), Speed::new(2.0, 100.0), &tiers)
        .map_err(CommandError::new)
}

impl Figure {
    fn case(&self, segments: Option<u32>) -> Case {
        Case {
            collective: Collective::AllReduce,
            ranks: self.cluster.ranks(),
            root: Rank(0),
            bytes: self.bytes,
            segments,
            codec: None,
            cluster: self.cluster.clone(),
            costs: self.costs(),
        }
    }

    /// Returns the costs of Apple's devices for few ranks, and of remote writes for many. With many ranks,
    /// only few pieces are simulated.
    fn costs(&self) -> Costs {
        let many = Costs { most_pieces: 4, ..Costs::rdma() };
        if self.cluster.ranks() > 64 { many } else { Costs::rdma_held() }
    }

    /// Returns the fastest run of each algorithm, fastest first.
    fn runs(&self, case: &Case) -> Result<Vec<Run>, CommandError> {
        let max_segments = if self.bytes < MIB { 1 } else { MAX_SEGMENTS };
        let mut runs = Vec::new();
        for implementation in Implementation::all(Collective::AllReduce) {
            let is_requested = self.algorithms.is_empty() || self.algorithms.contains(&implementation.name());
            let fits = self.bytes > 32 << 10 || implementation.name() != "jaccl_mesh";
            if is_requested && fits {
                runs.push(case.best(implementation, max_segments)?);
            }
        }
        runs.sort_by(|a, b| a.outcome.makespan.total_cmp(&b.outcome.makespan));
        Ok(runs)
    }

    fn table(&self, text: &mut String) -> Result<(), CommandError> {
        let case = self.case(None);
        let bound = case.bounds().seconds();
        // Writing to a string can't fail.
        let _ = writeln!(text, "### {}\n", self.title);
        let _ = writeln!(text, "The bound is {:.1} us.\n", bound * 1e6);
        let _ = writeln!(text, "| all_reduce by | segments | us | busbw, GB/s | of the bound |");
        let _ = writeln!(text, "|---|---:|---:|---:|---:|");
        for run in self.runs(&case)? {
            let seconds = run.outcome.makespan;
            let (busbw, share) = (case.bus_bandwidth(&run) * 1e-9, 100.0 * bound / seconds);
            let name = run.implementation.name();
            let _ = writeln!(
                text,
                "| `{name}` | {} | {:.1} | {busbw:.2} | {share:.1} % |",
                run.segments,
                seconds * 1e6
            );
        }
        let _ = writeln!(text);
        Ok(())
    }
}
