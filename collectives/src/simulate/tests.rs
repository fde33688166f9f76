//! The simulation against closed forms, and what must hold of every one.

use super::*;
use crate::{
    BlockLen, Codec, Collective, Spec,
    builder::Builder,
    pass,
    plan::{self, ALGORITHMS},
    schedule::ChunkRange,
};
use proptest::prelude::*;
use topology::{IntraHost, Speed, Tier};

const ALPHA: f64 = 5e-6;
const RATE: f64 = 1e9;
const SPEED: Speed = Speed { latency: ALPHA, bytes_per_second: RATE };

fn planned(collective: Collective, algorithm: &str, ranks: u32, segments: u32) -> Schedule {
    let spec = Spec::new(collective, ranks).expect("in range").with_segments(segments).expect("in range");
    plan::plan(&spec, algorithm).expect("a plan")
}

fn run(schedule: &Schedule, bytes: u64, cluster: &Cluster, costs: &Costs) -> Outcome {
    let layout = schedule.layout(bytes, 1).expect("small");
    simulate(schedule, &layout, 1, cluster, costs).expect("it runs")
}

fn seconds(schedule: &Schedule, bytes: u64, cluster: &Cluster, costs: &Costs) -> f64 {
    run(schedule, bytes, cluster, costs).makespan
}

#[track_caller]
fn assert_close(found: f64, expected: f64) {
    assert!((found / expected - 1.0).abs() < 1e-6, "{found} s, and {expected} s was expected");
}

/// Messages of one block from rank to rank.
fn messages(ranks: u32, pairs: &[(u32, u32, u8)]) -> Schedule {
    let spec = Spec::new(Collective::SendRecv, ranks).expect("in range");
    let mut builder = Builder::new(&spec, "by_hand", 1, pairs.len() as u32);
    for (number, (from, to, lane)) in (0..).zip(pairs) {
        builder.send(Rank(*from), Rank(*to), ChunkRange::input(0), *lane);
        builder.recv(Rank(*to), Rank(*from), ChunkRange::scratch(number), *lane);
    }
    builder.finish().expect("small")
}

#[test]
fn one_message_is_latency_and_bytes() {
    let (schedule, cluster) = (messages(2, &[(0, 1, 0)]), Cluster::mesh(2, SPEED));
    for bytes in [0, 1, 4096, 1 << 30] {
        assert_close(seconds(&schedule, bytes, &cluster, &Costs::default()), ALPHA + bytes as f64 / RATE);
    }
    let costs = Costs { call_us: 3.0, send_us: 1.0, recv_us: 2.0, header_bytes: 64, ..Costs::default() };
    assert_close(seconds(&schedule, 936, &cluster, &costs), 6e-6 + ALPHA + 1e-6);
    let framed = Costs { frame_bytes: 4096, ..Costs::default() };
    assert_close(seconds(&schedule, 4097, &cluster, &framed), ALPHA + 8192.0 / RATE);
}

#[test]
fn pieces_of_a_message_cost_what_the_message_does() {
    let (schedule, cluster) = (messages(2, &[(0, 1, 0)]), Cluster::mesh(2, SPEED));
    let whole = seconds(&schedule, 1 << 20, &cluster, &Costs::default());
    let cut = Costs { piece_bytes: 1000, most_pieces: 1000, ..Costs::default() };
    assert_close(seconds(&schedule, 1 << 20, &cluster, &cut), whole);
}

#[test]
fn what_is_combined_overlaps_with_what_arrives() {
    let schedule = planned(Collective::AllReduce, "mesh", 2, 1);
    let (cluster, bytes) = (Cluster::mesh(2, SPEED), 1 << 20);
    let slow = Costs { reduce_gbs: 2.0, ..Costs::default() };
    let cut = Costs { piece_bytes: 1 << 16, ..slow.clone() };
    let wire = ALPHA + bytes as f64 / RATE;
    assert_close(seconds(&schedule, bytes, &cluster, &slow), wire + bytes as f64 / 2e9);
    assert_close(seconds(&schedule, bytes, &cluster, &cut), wire + 65536.0 / 2e9);
}

#[test]
fn a_ring_is_its_stages() {
    for ranks in [2u32, 3, 5, 8] {
        let (bytes, n) = (u64::from(ranks) * 6400, f64::from(ranks));
        let schedule = planned(Collective::AllReduce, "ring", ranks, 1);
        let costs = Costs { send_us: 0.5, recv_us: 0.25, reduce_gbs: 4.0, ..Costs::default() };
        let stage = 0.75e-6 + ALPHA + 6400.0 / RATE;
        let expected = 2.0 * (n - 1.0) * stage + (n - 1.0) * 6400.0 / 4e9;
        assert_close(seconds(&schedule, bytes, &Cluster::ring(ranks, SPEED), &costs), expected);
    }
}

#[test]
fn a_chain_in_segments_is_a_pipeline() {
    let (ranks, segments, bytes) = (5u32, 16u32, 16 * 6400u64);
    let schedule = planned(Collective::Broadcast, "chain", ranks, segments);
    let hops = f64::from(ranks - 1);
    let expected = hops * (ALPHA + 6400.0 / RATE) + f64::from(segments - 1) * 6400.0 / RATE;
    assert_close(seconds(&schedule, bytes, &Cluster::ring(ranks, SPEED), &Costs::default()), expected);
}

#[test]
fn a_chain_of_sends_that_follow_is_a_pipeline_of_pieces() {
    let (ranks, pieces, bytes) = (5u32, 16u64, 16 * 6400u64);
    let hops = f64::from(ranks - 1);
    let piece = 6400.0 / RATE;
    for collective in [Collective::Broadcast, Collective::Reduce, Collective::Scan] {
        let fused = planned(collective, "chain", ranks, 1);
        let whole = pass::unfuse(fused.clone());
        let costs = Costs { piece_bytes: 6400, send_us: 0.5, recv_us: 0.25, ..Costs::default() };
        let (cluster, latency) = (Cluster::ring(ranks, SPEED), ALPHA + 0.75e-6);
        // The last rank begins to receive long before the last piece is there.
        let expected = hops * (latency + piece) - 0.25e-6 + (pieces - 1) as f64 * piece;
        assert_close(seconds(&fused, bytes, &cluster, &costs), expected);
        // Taking in a message begins before all of it is there.
        let waiting = hops * (latency - 0.25e-6 + bytes as f64 / RATE);
        assert_close(seconds(&whole, bytes, &cluster, &costs), waiting);
        // A single piece can't be forwarded in part.
        let costs = Costs { piece_bytes: u64::MAX, ..costs };
        let expected = hops * (latency + bytes as f64 / RATE);
        assert_close(seconds(&fused, bytes, &cluster, &costs), expected);
    }
}

#[test]
fn what_follows_is_ready_when_the_first_piece_is_there() {
    let (schedule, cluster) = (planned(Collective::Broadcast, "chain", 3, 1), Cluster::ring(3, SPEED));
    let costs = Costs { piece_bytes: 1000, ..Costs::default() };
    let outcome = run(&schedule, 10_000, &cluster, &costs);
    let [received, sent] = outcome.timings(Rank(1)) else { panic!("two steps: {schedule}") };
    assert_close(sent.ready, ALPHA + 1e-6);
    assert_eq!((sent.begin, sent.reason), (sent.ready, StartReason::Dependency));
    assert!(sent.begin < received.end && received.end < sent.end);
    let path = critical_path(&outcome);
    assert_eq!(
        path.iter().map(|step| (step.rank.0, step.step)).collect::<Vec<_>>(),
        [(0, 0), (1, 0), (1, 1)]
    );
}

#[test]
fn a_shared_port_halves_the_bandwidth() {
    let text = "
        shape = \"cables\"
        hosts = 3
        link = { latency_us = 5.0, bandwidth_gbps = 8.0 }
        port = [{ name = \"0/a\", bandwidth_gbps = 8.0 }]
        cable = [{ ends = [\"0/a\", \"1\"] }, { ends = [\"0/a\", \"2\"] }]
    ";
    let (shared, bytes) = (Cluster::from_toml(text).expect("right"), 1 << 20);
    let both = messages(3, &[(0, 1, 0), (0, 2, 0)]);
    let costs = Costs::default();
    let alone = ALPHA + bytes as f64 / RATE;
    assert_close(seconds(&both, bytes, &Cluster::mesh(3, SPEED), &costs), alone);
    assert_close(seconds(&both, bytes, &shared, &costs), ALPHA + 2.0 * bytes as f64 / RATE);
    // Full duplex: received data does not slow down sent data.
    assert_close(seconds(&messages(3, &[(0, 1, 0), (2, 0, 0)]), bytes, &shared, &costs), alone);
}

#[test]
fn a_link_is_shared_by_lanes_and_kept_in_order_within_one() {
    let (cluster, bytes, costs) = (Cluster::mesh(2, SPEED), 1_000_000, Costs::default());
    let ends = |outcome: &Outcome| [0, 1].map(|step| outcome.timings(Rank(1))[step].end);
    let one = ends(&run(&messages(2, &[(0, 1, 0), (0, 1, 0)]), bytes, &cluster, &costs));
    assert_close(one[0], ALPHA + 1e-3);
    assert_close(one[1], ALPHA + 2e-3);
    let two = ends(&run(&messages(2, &[(0, 1, 0), (0, 1, 1)]), bytes, &cluster, &costs));
    assert_close(two[0], ALPHA + 2e-3);
    assert_close(two[1], ALPHA + 2e-3);
}

#[test]
fn credits_throttle() {
    let schedule = messages(2, &[(0, 1, 0); 8]);
    let (cluster, bytes) = (Cluster::mesh(2, SPEED), 1000);
    let with = |credits| seconds(&schedule, bytes, &cluster, &Costs { credits, ..Costs::default() });
    // One credit: every message waits until the credit of the one before has come back.
    assert_close(with(1), 8.0 * (ALPHA + 1e-6) + 7.0 * ALPHA);
    // Two: pairs, one behind the other.
    assert_close(with(2), 4.0 * (2.0 * ALPHA + 1e-6) + 1e-6 - ALPHA);
    assert_close(with(16), ALPHA + 8e-6);
    let outcome = run(&schedule, bytes, &cluster, &Costs { credits: 1, ..Costs::default() });
    assert_eq!(outcome.timings(Rank(0))[3].reason, StartReason::Credit);
}

#[test]
fn a_granted_message_waits_for_its_receiver() {
    let spec = Spec::new(Collective::SendRecv, 2).expect("two");
    let mut builder = Builder::new(&spec, "by_hand", 1, 2);
    // Rank 1 copies first, into where the message goes afterwards.
    builder.copy(Rank(1), ChunkRange::input(0), ChunkRange::scratch(0));
    builder.send(Rank(0), Rank(1), ChunkRange::input(0), 0);
    builder.recv(Rank(1), Rank(0), ChunkRange::scratch(0), 0);
    let schedule = builder.finish().expect("small");
    let cluster = Cluster::mesh(2, SPEED);
    let costs = Costs { granted: true, grant_us: 1.0, copy_gbs: 1.0, confirmations: 1.0, ..Costs::default() };
    let outcome = run(&schedule, 10_000, &cluster, &costs);
    // The copy, the grant, the message, and the confirmation of its arrival.
    assert_close(outcome.makespan, 10e-6 + (1e-6 + ALPHA) + (10e-6 + ALPHA) + ALPHA);
    assert_eq!(outcome.timings(Rank(0))[0].reason, StartReason::Grant);
    let small = Costs { eager_bytes: 10_000, copy_gbs: f64::INFINITY, ..costs };
    assert_close(seconds(&schedule, 10_000, &cluster, &small), 10e-6 + ALPHA);
}

#[test]
fn a_message_in_slots_is_copied_at_both_ends_and_waits_for_no_grant() {
    let (schedule, cluster) = (messages(2, &[(0, 1, 0)]), Cluster::mesh(2, SPEED));
    let costs = Costs {
        eager_bytes: 64_000,
        fragment_bytes: 16_000,
        piece_us: 0.5,
        copy_gbs: 4.0,
        granted: true,
        grant_us: 1.0,
        confirmations: 1.0,
        ..Costs::default()
    };
    // The first fragment is copied, the fragments follow each other on the link, and the last one is copied.
    let fragment = 0.5e-6 + 4e-6;
    assert_close(seconds(&schedule, 64_000, &cluster, &costs), 2.0 * fragment + 64e-6 + ALPHA);
    let sent = |bytes| run(&schedule, bytes, &cluster, &costs).timings(Rank(0))[0].end;
    assert_close(sent(64_000), 4.0 * fragment);
    // One byte more: a grant, one piece without a copy, and the confirmation.
    let wire = ALPHA + 1e-6 + 0.5e-6 + 64.001e-6 + ALPHA;
    assert_close(sent(64_001), wire + ALPHA);
    assert_close(run(&schedule, 64_001, &cluster, &costs).timings(Rank(1))[0].end, wire + 0.5e-6);
}

#[test]
fn fragments_and_pieces_have_credits_of_their_own() {
    let schedule = messages(2, &[(0, 1, 0); 8]);
    let cluster = Cluster::mesh(2, SPEED);
    let costs = Costs { eager_bytes: 1000, credits: 1, fragment_credits: 16, ..Costs::default() };
    assert_close(seconds(&schedule, 1000, &cluster, &costs), ALPHA + 8e-6);
    assert_close(seconds(&schedule, 1001, &cluster, &costs), 8.0 * (ALPHA + 1.001e-6) + 7.0 * ALPHA);
    let costs = Costs { credits: 16, fragment_credits: 1, ..costs };
    assert_close(seconds(&schedule, 1000, &cluster, &costs), 8.0 * (ALPHA + 1e-6) + 7.0 * ALPHA);
    assert_close(seconds(&schedule, 1001, &cluster, &costs), ALPHA + 8.008e-6);
}

#[test]
fn grants_cost_one_hop_of_a_call_and_messages_in_slots_none() {
    let cluster = Cluster::mesh(4, Speed::new(5.0, 75.0));
    let times = |algorithm, bytes| {
        let schedule = planned(Collective::AllReduce, algorithm, 4, 1);
        let of = |costs: &Costs| seconds(&schedule, bytes, &cluster, costs);
        let held = Costs { granted: false, grant_us: 0.0, ..Costs::rdma() };
        (of(&Costs::rdma()), of(&held))
    };
    for algorithm in ["mesh", "rsag_mesh", "recursive_doubling", "ring"] {
        let (granted, held) = times(algorithm, 64 << 10);
        assert_close(granted, held);
        let (granted, held) = times(algorithm, 4 << 20);
        let grant = 5e-6 + 1e-6;
        assert!(granted > held && granted < held + 1.5 * grant, "{algorithm} {granted} {held}");
    }
}

#[test]
fn a_software_device_and_checksums_cost_the_processor_time_per_byte() {
    let cluster = Cluster::mesh(2, Speed::new(5.0, 75.0));
    let schedule = messages(2, &[(0, 1, 0)]);
    let in_a_piece = |costs: &Costs| Costs { eager_bytes: 0, ..costs.clone() };
    let time = |costs: &Costs| seconds(&schedule, 128 << 10, &cluster, &in_a_piece(costs));
    let bytes = f64::from(128 << 10);
    let plain = Costs { send_gbs: f64::INFINITY, recv_gbs: f64::INFINITY, ..Costs::rdma_held() };
    let software = time(&plain.clone().on_software_devices());
    // The confirmation of the send covers what the receiver does meanwhile.
    assert_close(software, time(&plain) + bytes / 40e9);
    assert_close(time(&Costs::rdma_held()), time(&plain) + bytes / 180e9);
    assert_close(time(&Costs::rdma_held().on_software_devices()), software + bytes / 180e9);
}

#[test]
fn words_wait_behind_what_was_handed_over_before_them() {
    // Both directions at once; of one, the second message's grant has to wait for all of the other's first.
    let schedule = messages(2, &[(0, 1, 0), (1, 0, 0), (0, 1, 0)]);
    let (cluster, bytes) = (Cluster::mesh(2, SPEED), 100_000);
    let ends =
        |costs: &Costs| run(&schedule, bytes, &cluster, costs).timings(Rank(1)).last().expect("three").end;
    let costs = Costs { granted: true, ahead: 1, ..Costs::default() };
    let message = ALPHA + 1e-4;
    assert_close(ends(&costs), 2.0 * (ALPHA + message));
    // When the first one arrives, the other direction has had as much time but for the latency.
    let waiting = Costs { words_wait: true, piece_bytes: 25_000, credits: 2, ..costs.clone() };
    assert!(ends(&waiting) > ends(&Costs { words_wait: false, ..waiting }) + 1e-6);
}

#[test]
fn the_critical_path_leads_from_the_beginning_to_the_end() {
    let schedule = planned(Collective::AllReduce, "ring", 5, 1);
    let outcome = run(&schedule, 64_000, &Cluster::ring(5, SPEED), &Costs::default());
    let path = critical_path(&outcome);
    for costs in [Costs::rdma(), Costs::jaccl(), Costs { credits: 1, words_wait: true, ..Costs::rdma() }] {
        let tree = planned(Collective::AllReduce, "double_binary_tree", 5, 6);
        let outcome = run(&tree, 3_000_000, &Cluster::mesh(5, SPEED), &costs);
        let path = critical_path(&outcome);
        let mut seen: Vec<(Rank, u32)> = path.iter().map(|step| (step.rank, step.step)).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), path.len(), "a step is on the path once");
        assert_close(path.last().expect("not empty").end, outcome.makespan);
    }
    // Every stage is a send and its receive.
    assert_eq!(path.len(), 2 * 8);
    assert_eq!(path[0].reason, StartReason::Start);
    assert_close(path.last().expect("not empty").end, outcome.makespan);
    for (before, after) in path.iter().zip(&path[1..]) {
        assert!(before.begin <= after.end && before.end <= after.end, "{before:?} {after:?}");
        assert!([StartReason::Message, StartReason::Dependency].contains(&after.reason), "{after:?}");
    }
}

#[test]
fn every_plan_runs_and_what_links_carry_is_what_it_sends() {
    for ranks in 2..=9 {
        let tiers = [
            Tier { hosts: 2, oversubscription: 4.0, latency: 1e-6 },
            Tier { hosts: 8, oversubscription: 1.0, latency: 1e-6 },
        ];
        let switched = Cluster::switched(5, (2, IntraHost::default()), SPEED, &tiers).expect("it fits");
        let mesh = Cluster::mesh(ranks, SPEED);
        for algorithm in ALGORITHMS.iter().filter(|a| a.check_ranks(ranks).is_ok()) {
            for segments in [1, 3] {
                let schedule = planned(algorithm.collective, algorithm.name, ranks, segments);
                let layout = schedule.layout(10_000, 1).expect("small");
                let sent: u64 = schedule
                    .programs
                    .iter()
                    .flat_map(|p| &p.steps)
                    .filter_map(|step| {
                        let sends =
                            matches!(step.action.message(), Some((_, crate::schedule::Direction::Out)));
                        step.action.payload().filter(|_| sends).map(|range| layout.range(range).1)
                    })
                    .sum();
                let default = Costs::default();
                for costs in [&default, &Costs::rdma(), &Costs { credits: 1, ..Costs::jaccl() }] {
                    let outcome = run(&schedule, 10_000, &switched, costs);
                    assert!(outcome.makespan > 0.0);
                    let outcome = run(&schedule, 10_000, &mesh, costs);
                    let carried: u64 = outcome.links.iter().map(|link| link.bytes).sum();
                    if costs == &default {
                        assert_eq!(carried, sent, "{} on {ranks}", algorithm.name);
                    }
                    let bounds = bounds::bounds(algorithm.collective, ranks, 10_000, &mesh, costs);
                    let (found, least) = (outcome.makespan, bounds.seconds());
                    assert!(
                        found >= least * (1.0 - 1e-9),
                        "{} on {ranks}: {found} {bounds:?}",
                        algorithm.name
                    );
                }
            }
        }
    }
}

#[test]
fn the_same_again_is_the_same_to_the_bit() {
    let schedule = planned(Collective::AllReduce, "double_binary_tree", 9, 4);
    let cluster = Cluster::mesh(9, SPEED);
    let once = || run(&schedule, 123_457, &cluster, &Costs::rdma());
    let (one, other) = (once(), once());
    assert_eq!((one.makespan.to_bits(), one.events), (other.makespan.to_bits(), other.events));
    assert_eq!((one.timings, one.links), (other.timings, other.links));
}

#[test]
fn what_cannot_run_is_said() {
    let ring = Cluster::ring(5, SPEED);
    let schedule = planned(Collective::AllReduce, "mesh", 5, 1);
    let layout = schedule.layout(10, 1).expect("small");
    let simulated = |schedule: &Schedule, cluster: &Cluster| {
        simulate(schedule, &layout, 1, cluster, &Costs::default()).map(|outcome| outcome.makespan)
    };
    let no_route = SimulationError::NoRoute { from: Rank(0), to: Rank(2) };
    assert_eq!(simulated(&schedule, &ring), Err(no_route));
    let few = Cluster::mesh(3, SPEED);
    assert_eq!(simulated(&schedule, &few), Err(SimulationError::TooManyRanks { ranks: 5, room: 3 }));
    let mut broken = schedule.clone();
    broken.programs[3].steps.remove(0);
    assert!(matches!(simulated(&broken, &Cluster::mesh(5, SPEED)), Err(SimulationError::Unmatched { .. })));
    // Each waits for the other's message before it sends its own.
    let mut circle = messages(2, &[(0, 1, 0), (1, 0, 0)]);
    for (program, first) in circle.programs.iter_mut().zip([1, 0]) {
        program.steps.sort_by_key(|step| usize::from(step.action.writes().is_none()));
        program.steps[1].after = [0].into_iter().collect();
        assert!(first <= 1);
    }
    let hangs = simulated(&circle, &Cluster::mesh(2, SPEED));
    assert_eq!(hangs, Err(SimulationError::Hangs { at: (Rank(0), 0) }));
}

#[test]
fn four_macs_in_a_mesh_are_within_a_twentieth_of_the_bound() {
    let cluster = Cluster::mesh(4, Speed::new(5.0, 75.0));
    let schedule = planned(Collective::AllReduce, "rsag_mesh", 4, 64);
    let (bytes, costs) = (64 << 20, Costs::rdma());
    let found = seconds(&schedule, bytes, &cluster, &costs);
    let bounds = bounds::bounds(Collective::AllReduce, 4, bytes, &cluster, &costs);
    // Three cables of 9.375 GB/s.
    assert_close(bus_bandwidth(&schedule, bytes, bounds.seconds()), 28.125e9);
    assert!(found * 0.95 <= bounds.seconds() && found >= bounds.seconds(), "{found} {bounds:?}");
}

#[test]
fn bounds_see_what_is_shared() {
    let tiers = [
        Tier { hosts: 2, oversubscription: 2.0, latency: 0.0 },
        Tier { hosts: 4, oversubscription: 1.0, latency: 0.0 },
    ];
    let cluster = Cluster::switched(4, (2, IntraHost::default()), SPEED, &tiers).expect("it fits");
    let of = |collective| bounds::bounds(collective, 8, 1 << 20, &cluster, &Costs::default()).bandwidth;
    let block = f64::from(1 << 20) / RATE;
    // A switch's uplink carries the traffic of one host; two groups exchange a block; a host's link carries 2
    // * 3/4 blocks.
    assert_close(of(Collective::AllReduce), 1.5 * block);
    assert_close(of(Collective::AllGather), 6.0 * block);
    // Four ranks send to four others over one link.
    assert_close(of(Collective::AllToAll), 16.0 * block);
    let ring = Cluster::ring(5, SPEED);
    let bounds = bounds::bounds(Collective::Barrier, 5, 0, &ring, &Costs::default());
    assert_close(bounds.latency, 2.0 * ALPHA);
}

#[test]
fn pictures_and_traces_are_whole() {
    let schedule = planned(Collective::AllReduce, "ring", 4, 40);
    let outcome = run(&schedule, 1 << 20, &Cluster::ring(4, SPEED), &Costs::rdma());
    let picture = svg(&schedule, &outcome, "a < b & c");
    assert!(picture.len() < 200_000 && picture.contains("a &lt; b &amp; c") && picture.ends_with("</svg>\n"));
    assert_eq!(picture.matches("<rect").count(), 1 + 5 + 900);
    assert!(picture.contains("rank 3") && picture.contains(" us<"), "{}", &picture[..2000]);
    let trace = trace(&schedule, &outcome);
    let steps: usize = schedule.programs.iter().map(|program| program.steps.len()).sum();
    assert_eq!(trace.matches("\"ph\":\"X\"").count(), steps);
    assert!(!trace.contains("NaN") && !trace.contains(",,"));
    let text = report(&schedule, &Cluster::ring(4, SPEED), &outcome);
    assert!(text.contains("host 0 to host 1") && text.contains("critical path"), "{text}");
}

#[test]
fn what_peers_do_is_right_by_the_verifier() {
    for ranks in 1..=8 {
        let spec = Spec::new(Collective::AllReduce, ranks).expect("in range");
        for planner in [peers::jaccl_mesh, peers::jaccl_mesh_small, peers::mlx_ring] {
            let schedule = planner(&spec).expect("a plan");
            let verdict = crate::verify::verify(&schedule, crate::verify::Credits(0));
            assert!(verdict.is_ok(), "{} on {ranks}: {verdict:?}", schedule.algorithm);
        }
    }
}

proptest! {
    #[test]
    fn more_bandwidth_is_never_slower(
        pick in any::<prop::sample::Index>(), ranks in 2u32..8, segments in 1u32..5, bytes in 1u64..3_000_000,
        faster in 1.0f64..20.0, costly in any::<bool>(),
    ) {
        let algorithm = pick.get(ALGORITHMS);
        let schedule = planned(algorithm.collective, algorithm.name, ranks, segments);
        let cluster = Cluster::mesh(ranks, SPEED);
        let costs = if costly { Costs::rdma() } else { Costs::default() };
        let slow = seconds(&schedule, bytes, &cluster, &costs);
        let fast = seconds(&schedule, bytes, &cluster.scaled(faster), &costs);
        let case = format!("{} {}", algorithm.collective, algorithm.name);
        prop_assert!(fast <= slow * (1.0 + 1e-9), "{case} {fast} {slow}");
    }
}

/// On a link that is slower than packing, a packed call takes as long as its packed bytes need.
#[test]
fn packed_messages_take_the_time_of_their_packed_bytes() {
    let cluster = Cluster::from_toml(
        "name = \"slow\"\nshape = \"mesh\"\nhosts = 2\nlink = { latency_us = 5.0, bandwidth_gbps = 1.0 }",
    )
    .expect("a cluster");
    let time = |codec| {
        let spec = Spec::new(Collective::AllReduce, 2).expect("few").with_codec(codec);
        let schedule = plan::plan(&spec, "rsag_mesh").expect("a plan");
        let layout = schedule.layout(1 << 20, 4).expect("small");
        simulate(&schedule, &layout, 4, &cluster, &Costs::rdma()).expect("it runs").makespan
    };
    let plain = time(None);
    for (codec, least, most) in [(Codec::Int8(BlockLen::B128), 0.25, 0.29), (Codec::Bf16, 0.49, 0.54)] {
        let ratio = time(Some(codec)) / plain;
        assert!((least..most).contains(&ratio), "{codec} takes {ratio:.3} of the time");
    }
}
