//! Simulated gain of sends that follow receives.
//!
//! `cargo test -p tbccl-collectives --test plans fusing -- --nocapture` prints the table in
//! docs/simulation.md.

use collectives::plan::{ALGORITHMS, plan};
use collectives::simulate::{Costs, simulate};
use collectives::{Collective, Schedule, Spec, pass};
use topology::{Cluster, Speed};

/// Simulates every packet of a message.
fn costs() -> Costs {
    Costs { most_pieces: 1024, ..Costs::rdma_held() }
}

fn planned(collective: Collective, algorithm: &str, ranks: u32, segments: u32) -> Schedule {
    let spec = Spec::new(collective, ranks).expect("in range").with_segments(segments).expect("in range");
    plan(&spec, algorithm).expect("a plan")
}

fn microseconds(schedule: &Schedule, block_bytes: u64, cluster: &Cluster) -> f64 {
    let layout = schedule.layout(block_bytes, 1).expect("it fits");
    1e6 * simulate(schedule, &layout, 1, cluster, &costs()).expect("it runs").makespan
}

/// Returns the times of a plan whose sends wait for the whole receive, and of the same plan whose sends
/// follow it.
fn waiting_and_following(schedule: Schedule, block_bytes: u64, cluster: &Cluster) -> [f64; 2] {
    let following = microseconds(&schedule, block_bytes, cluster);
    [microseconds(&pass::unfuse(schedule), block_bytes, cluster), following]
}

/// Following removes waits, so it makes no plan slower, except where another order of work does: Graham's
/// anomalies.
#[test]
fn plans_whose_sends_follow_are_not_slower() {
    let cable = Speed::new(5.0, 75.0);
    let mut faster = 0;
    for ranks in [2, 4, 5, 8] {
        let cluster = Cluster::mesh(ranks, cable);
        for algorithm in ALGORITHMS.iter().filter(|a| a.check_ranks(ranks).is_ok()) {
            for (segments, bytes) in [(1, 4096), (1, 4 << 20), (4, 4 << 20)] {
                let schedule = planned(algorithm.collective, algorithm.name, ranks, segments);
                let [waiting, following] = waiting_and_following(schedule, bytes, &cluster);
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
            waiting_and_following(schedule, bytes, &cluster)
        };
        let tried: Vec<(u32, [f64; 2])> = (0..=10).map(|power| (1 << power, of(1 << power))).collect();
        let best = |which: usize| {
            let times = tried.iter().map(|(segments, times)| (*segments, times[which]));
            times.min_by(|a, b| a.1.total_cmp(&b.1)).expect("several")
        };
        let [waiting, following] = tried[0].1;
        let [(best_waiting, best_waiting_us), (best_following, best_following_us)] = [best(0), best(1)];
        eprintln!(
            "| {collective} by `{algorithm}` | {} MiB | {waiting:.0} | {following:.0} | \
             {best_waiting_us:.0} in {best_waiting} | \
             {best_following_us:.0} in {best_following} |",
            bytes >> 20
        );
        assert!(following <= waiting * 1.01 && best_following_us <= best_waiting_us * 1.01);
        if algorithm == "chain" && bytes > 1 << 20 {
            assert!(
                following < 1.1 * best_waiting_us,
                "whole {following} us, in the best segments {best_waiting_us} us"
            );
        }
    }
}
