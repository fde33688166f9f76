//! The pictures and tables of docs/simulation.md, all from here, so that none is out of date.

use super::{
    case::{Case, Run, Way},
    write,
};
use crate::commands::{Failed, print};
use collectives::{
    Collective,
    simulate::{Costs, svg},
};
use std::{fmt::Write, fs, path::Path};
use topology::{Cluster, Inside, Rank, Speed, Tier};

const MIB: u64 = 1 << 20;
/// The most segments that are tried.
const MOST_SEGMENTS: u32 = 64;

/// A cable of Thunderbolt 5 as people measure it: latency, and gigabits per second in each direction.
fn thunderbolt() -> Speed {
    Speed::new(5.0, 75.0)
}

/// One table.
struct Figure {
    title: &'static str,
    cluster: Cluster,
    bytes: u64,
    /// Algorithms of `all_reduce`; all that can run there if none.
    algorithms: &'static [&'static str],
    /// The file of the picture of this algorithm, in this many segments: few enough to see something.
    picture: Option<(&'static str, &'static str, u32)>,
}

/// Makes them: pictures into a folder, tables on stdout.
pub(super) fn draw(folder: &Path) -> Result<(), Failed> {
    fs::create_dir_all(folder).map_err(|error| {
        Failed::new(format_args!("can't make `{}`: {error}; name another folder", folder.display()))
    })?;
    let mut text = String::new();
    for figure in figures()? {
        figure.table(&mut text)?;
        if let Some((file, algorithm, segments)) = figure.picture {
            let case = figure.case(Some(segments));
            let run = case.run(Way::named(Collective::AllReduce, algorithm)?).map_err(Failed::new)?;
            let title = format!("{algorithm} in {segments} segments, {}", figure.title);
            write(&folder.join(file), &svg(&run.schedule, &run.outcome, &title))?;
        }
    }
    print(&text);
    Ok(())
}

fn figures() -> Result<Vec<Figure>, Failed> {
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

/// 64 hosts of 8 ranks, 16 hosts below a switch, its ways up half as wide as its ways down.
fn two_tiers() -> Result<Cluster, Failed> {
    let tiers = [
        Tier { hosts: 16, oversubscription: 2.0, latency: 0.0 },
        Tier { hosts: 64, oversubscription: 1.0, latency: 1e-6 },
    ];
    Cluster::switched(64, (8, Inside::default()), Speed::new(2.0, 100.0), &tiers).map_err(Failed::new)
}

/// 4096 hosts in three tiers.
fn fat_tree() -> Result<Cluster, Failed> {
    let tiers = [
        Tier { hosts: 16, oversubscription: 1.0, latency: 0.0 },
        Tier { hosts: 256, oversubscription: 2.0, latency: 1e-6 },
        Tier { hosts: 4096, oversubscription: 1.0, latency: 1e-6 },
    ];
    Cluster::switched(4096, (1, Inside::default()), Speed::new(2.0, 100.0), &tiers).map_err(Failed::new)
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

    /// With many ranks, pieces are sampled.
    fn costs(&self) -> Costs {
        let most_pieces = if self.cluster.ranks() > 64 { 4 } else { Costs::rdma().most_pieces };
        Costs { most_pieces, ..Costs::rdma() }
    }

    /// The fastest run of each algorithm that can run there.
    fn runs(&self, case: &Case) -> Result<Vec<Run>, Failed> {
        let most = if self.bytes < MIB { 1 } else { MOST_SEGMENTS };
        let mut runs = Vec::new();
        for way in Way::all(Collective::AllReduce) {
            let wanted = self.algorithms.is_empty() || self.algorithms.contains(&way.name());
            let fits = self.bytes > 32 << 10 || way.name() != "jaccl_mesh";
            if wanted && fits {
                runs.push(case.best(way, most)?);
            }
        }
        runs.sort_by(|a, b| a.outcome.makespan.total_cmp(&b.outcome.makespan));
        Ok(runs)
    }

    fn table(&self, text: &mut String) -> Result<(), Failed> {
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
            let name = run.way.name();
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
