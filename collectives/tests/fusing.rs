//! What plans gain from sends that follow receives, as it is simulated. The table in docs/simulation.md is what
//! `cargo test -p tbccl-collectives --test fusing -- --nocapture` prints.

use collectives::plan::{ALGORITHMS, plan};
use collectives::simulate::{Costs, simulate};
use collectives::{Collective, Schedule, Spec, pass};
use topology::{Cluster, Speed};

/// Every piece is looked at.
fn costs() -> Costs {
    Costs { most_pieces: 1024, ..Costs::rdma() }
}

fn planned(collective: Collective, algorithm: &str, ranks: u32, segments: u32) -> Schedule {
    let spec = Spec::new(collective, ranks).expect("in range").with_segments(segments).expect("in range");
    plan(&spec, algorithm).expect("a plan")
}

fn microseconds(schedule: &Schedule, block_bytes: u64, cluster: &Cluster) -> f64 {
    let layout = schedule.layout(block_bytes, 1).expect("it fits");
    1e6 * simulate(schedule, &layout, 1, cluster, &costs()).expect("it runs").makespan
}

/// The time of a plan whose sends wait, and of the same plan whose sends follow.
fn both(schedule: Schedule, block_bytes: u64, cluster: &Cluster) -> [f64; 2] {
    let following = microseconds(&schedule, block_bytes, cluster);
    [microseconds(&pass::unfuse(schedule), block_bytes, cluster), following]
}

/// Longer ways to wait are never shorter ways to be done, but for what comes in another order: Graham's anomalies.
#[test]
fn plans_whose_sends_follow_are_not_slower() {
    let cable = Speed::new(5.0, 75.0);
    let mut faster = 0;
    for ranks in [2, 4, 5, 8] {
        let cluster = Cluster::mesh(ranks, cable);
        for algorithm in ALGORITHMS.iter().filter(|a| a.check_ranks(ranks).is_ok()) {
            for (segments, bytes) in [(1, 4096), (1, 4 << 20), (4, 4 << 20)] {
                let schedule = planned(algorithm.collective, algorithm.name, ranks, segments);
                let [waiting, following] = both(schedule, bytes, &cluster);
                let what = format!("{} {} on {ranks}", algorithm.collective, algorithm.name);
                assert!(following <= waiting * 1.03, "{what}, {segments}: {following} us for {waiting}");
                faster += u32::from(following < waiting * 0.97);
            }
        }
    }
    assert!(faster > 100, "only {faster} are faster by a thirtieth");
}

#[test]
fn a_whole_message_goes_down_a_chain_about_as_fast_as_the_best_segments() {
    let ring5 = || Cluster::ring(5, Speed::new(5.0, 75.0));
    let mesh4 = || Cluster::mesh(4, Speed::new(5.0, 75.0));
    use Collective::{AllGather, AllReduce, Broadcast, Reduce};
    eprintln!("| plan | bytes | whole, waiting | following | best, waiting | following |");
    eprintln!("|---|---:|---:|---:|---:|---:|");
    for (collective, algorithm, cluster, bytes) in [
        (AllReduce, "ring", ring5(), 1 << 20),
        (AllReduce, "ring", ring5(), 64 << 20),
        (AllReduce, "double_binary_tree", mesh4(), 1 << 20),
        (AllReduce, "double_binary_tree", mesh4(), 64 << 20),
        (AllGather, "ring", ring5(), 1 << 20),
        (Reduce, "chain", ring5(), 1 << 20),
        (Reduce, "chain", ring5(), 64 << 20),
        (Broadcast, "chain", ring5(), 1 << 20),
        (Broadcast, "chain", ring5(), 64 << 20),
    ] {
        let of = |segments| {
            let schedule = planned(collective, algorithm, cluster.ranks(), segments);
            both(schedule, bytes, &cluster)
        };
        let tried: Vec<(u32, [f64; 2])> = (0..=10).map(|power| (1 << power, of(1 << power))).collect();
        let best = |which: usize| {
            let times = tried.iter().map(|(segments, times)| (*segments, times[which]));
            times.min_by(|a, b| a.1.total_cmp(&b.1)).expect("several")
        };
        let [waiting, following] = tried[0].1;
        let [(cut, cut_waiting), (cut_less, cut_following)] = [best(0), best(1)];
        eprintln!(
            "| {collective} by `{algorithm}` | {} MiB | {waiting:.0} | {following:.0} | {cut_waiting:.0} in {cut} | \
             {cut_following:.0} in {cut_less} |",
            bytes >> 20
        );
        assert!(following <= waiting * 1.01 && cut_following <= cut_waiting * 1.01);
        if algorithm == "chain" && bytes > 1 << 20 {
            assert!(
                following < 1.1 * cut_waiting,
                "whole {following} us, in the best segments {cut_waiting} us"
            );
        }
    }
}
