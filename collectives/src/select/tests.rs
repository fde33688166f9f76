//! Tests of the chosen algorithm, and of the errors where no algorithm can do a call.

use super::*;
use crate::Spec;
use crate::verify::{Credits, verify};
use std::collections::BTreeSet;

/// Uses fixed thresholds, so that tuning the defaults does not change the expected choices.
fn choice(collective: Collective, ranks: u32, block_bytes: u64) -> (&'static str, u32) {
    let tuning = Tuning {
        mesh_bytes: 16 << 10,
        pair_bytes: 16 << 10,
        direct_ranks: 16,
        doubling_bytes: 4 << 10,
        binomial_bytes: 64 << 10,
        tree_bytes: 128 << 10,
        segment_bytes: 128 << 10,
        max_segments: 64,
        stage_bytes: 64 << 10,
        messages_are_calls: false,
    };
    let policy = Policy { tuning, ..Policy::default() };
    let call = Call { collective, ranks, block_bytes };
    let choice = choose(call, Rank(0), &Reach::complete(), &policy, Requirements::default()).expect("a plan");
    (choice.algorithm, choice.segments)
}

#[test]
fn small_blocks_take_few_stages_and_large_ones_little_traffic() {
    assert_eq!(choice(Collective::AllReduce, 2, 16 << 10), ("mesh", 1));
    assert_eq!(choice(Collective::AllReduce, 4, 16 << 10), ("rsag_mesh", 1));
    assert_eq!(choice(Collective::AllReduce, 2, 1 << 20), ("rsag_mesh", 4));
    assert_eq!(choice(Collective::AllReduce, 32, 1 << 10), ("recursive_doubling", 1));
    assert_eq!(choice(Collective::AllReduce, 32, 1 << 30), ("ring", 64));
    assert_eq!(choice(Collective::Broadcast, 4, 1 << 10), ("binomial", 1));
    assert_eq!(choice(Collective::Broadcast, 4, 1 << 20), ("chain", 8));
    assert_eq!(choice(Collective::AllGather, 64, 8), ("ring", 1));
    assert_eq!(choice(Collective::Barrier, 8, 0), ("mesh", 1));
    assert_eq!(choice(Collective::Barrier, 64, 0), ("dissemination", 1));
}

#[test]
fn by_rdma_one_stage_is_taken_for_more_bytes_and_most_of_all_on_two_ranks() {
    let choice = |ranks, block_bytes| {
        let policy = Policy { tuning: Tuning::rdma(), ..Policy::default() };
        let call = Call { collective: Collective::AllReduce, ranks, block_bytes };
        let choice = choose(call, Rank(0), &Reach::complete(), &policy, Requirements::default());
        choice.map(|choice| (choice.algorithm, choice.segments)).expect("a plan")
    };
    assert_eq!(choice(2, 64 << 10), ("mesh", 1));
    assert_eq!(choice(2, 128 << 10), ("mesh", 1), "a message in slots is a pipeline already");
    assert_eq!(
        choice(2, 192 << 10),
        ("rsag_mesh", 1),
        "its messages travel in slots, those of a mesh in pieces"
    );
    assert_eq!(choice(2, 1 << 20), ("rsag_mesh", 1));
    assert_eq!(choice(4, 64 << 10), ("mesh", 1));
    assert_eq!(choice(4, 128 << 10), ("rsag_mesh", 1));
    assert_eq!(choice(8, 32 << 10), ("rsag_mesh", 1));
    assert_eq!(choice(4, 512 << 10), ("rsag_mesh", 1), "copies for three peers take longer than a grant");
}

#[test]
fn every_choice_can_be_planned_for() {
    let tuning =
        Tuning { direct_ranks: u32::MAX, mesh_bytes: u64::MAX, max_segments: 0, ..Tuning::default() };
    for tuning in [Tuning::default(), tuning] {
        for collective in Collective::ALL {
            for ranks in [1, 2, 3, 16, 17, 257, 513, 1024] {
                for block_bytes in [0, 1, 4096, 1 << 20, u64::MAX] {
                    let call = Call { collective, ranks, block_bytes };
                    let policy = Policy { tuning: tuning.clone(), ..Policy::default() };
                    let choice = choose(call, Rank(0), &Reach::complete(), &policy, Requirements::default())
                        .expect("a plan");
                    let algorithm = plan::algorithm(collective, choice.algorithm).expect("a known name");
                    algorithm.check_ranks(ranks).expect("within the limit of ranks");
                    let spec = Spec::new(collective, ranks).expect("in range");
                    spec.with_segments(choice.segments).expect("in range");
                }
            }
        }
    }
}

/// Connects neighbors of a ring of ranks, except the pair `without`.
fn ring(ranks: u32, without: Option<(u32, u32)>) -> Reach {
    Reach::new(ranks, |a, b| {
        (b == a.ahead(1, ranks) || a == b.ahead(1, ranks)) && without != Some((a.0, b.0))
    })
}

#[test]
fn on_a_ring_of_cables_every_collective_has_a_plan_between_neighbours() {
    for ranks in [4, 5, 8] {
        let reach = ring(ranks, None);
        for collective in Collective::ALL {
            for block_bytes in [0, 4, 1 << 20] {
                let call = Call { collective, ranks, block_bytes };
                for root in (0..ranks).map(Rank).filter(|r| *r == Rank(0) || collective.has_root()) {
                    let choice = choose(call, root, &reach, &Policy::default(), Requirements::default())
                        .expect("a ring");
                    let spec =
                        Spec::new(collective, ranks).expect("in range").with_root(root).expect("in range");
                    let schedule = plan::plan(&spec, choice.algorithm).expect("a known name");
                    assert_eq!(
                        schedule.first_unconnected(&reach),
                        None,
                        "{collective} by {}",
                        choice.algorithm
                    );
                }
            }
        }
    }
}

#[test]
fn where_everyone_reaches_everyone_the_choice_is_as_ever() {
    for ranks in [2, 3, 5, 16] {
        for collective in Collective::ALL {
            let call = Call { collective, ranks, block_bytes: 1 << 20 };
            let by =
                |reach: &Reach| choose(call, Rank(0), reach, &Policy::default(), Requirements::default());
            assert_eq!(by(&Reach::new(ranks, |_, _| true)), by(&Reach::complete()));
        }
    }
    // A ring of three ranks is a mesh.
    assert!(ring(3, None).is_complete());
}

fn policy(algorithm: &str, rules: &str) -> Policy {
    let overrides = Overrides {
        names: Names::parse(algorithm).expect("known"),
        rules: Overrides::rules_from_toml(rules).expect("good rules"),
    };
    Policy { overrides, ..Policy::default() }
}

#[test]
fn what_people_want_comes_first() {
    let rules = "version = 1\n[[rule]]\ncollective = \"all_reduce\"\nbytes = \"..1K\"\nalgorithm = \
                 \"torus\"\nsegments = 2";
    let best = |bytes, algorithm: &str| TunedChoice {
        collective: Collective::AllReduce,
        bytes,
        algorithm: algorithm.into(),
        segments: 3,
        us: 1.0,
    };
    let tuned = {
        let mut tuned = Tuned::new(Fingerprint::default());
        tuned.choices.push(best(1, "recursive_doubling"));
        tuned
    };
    let by = |names: &str, rules: &str, block_bytes| {
        let policy = Policy { tuned: Some(tuned.clone()), ..policy(names, rules) };
        let call = Call { collective: Collective::AllReduce, ranks: 4, block_bytes };
        let choice =
            choose(call, Rank(0), &Reach::complete(), &policy, Requirements::default()).expect("a plan");
        (choice.algorithm, choice.segments)
    };
    assert_eq!(by("ring", rules, 1024), ("torus", 2));
    assert_eq!(by("ring", rules, 1025), ("ring", 1));
    assert_eq!(by("", rules, 1025), ("recursive_doubling", 3));
    // The first name that the collective has is chosen.
    assert_eq!(by("chain,mesh", "version = 1", 8), ("mesh", 1));
    assert_eq!(by("^recursive_doubling", "version = 1", 8), ("mesh", 1));
    assert_eq!(by("^recursive_doubling,mesh", "version = 1", 8), ("ring", 1));
}

#[test]
fn what_can_not_do_a_call_is_said_why() {
    let by = |names: &str, requirements| {
        let call = Call { collective: Collective::AllGather, ranks: 4, block_bytes: 8 };
        choose(call, Rank(0), &Reach::complete(), &policy(names, "version = 1"), requirements)
    };
    let uneven = Requirements { uneven: true, ..Requirements::default() };
    assert_eq!(by("bruck", Requirements::default()).map(|choice| choice.algorithm), Ok("bruck"));
    assert_eq!(by("bruck", uneven).map(|choice| choice.algorithm), Ok("direct"));
    let all: Vec<&str> = plan::algorithms(Collective::AllGather).map(|a| a.name).collect();
    let error = by(&format!("^{}", all.join(",")), Requirements::default()).expect_err("nothing is left");
    assert_eq!(error, PlanError::AllExcluded { collective: Collective::AllGather });
}

#[test]
fn a_plan_without_a_cable_is_refused_with_the_pair_and_a_way_out() {
    let call = Call { collective: Collective::AllReduce, ranks: 5, block_bytes: 4 };
    let error = check(call, Rank(0), "mesh", &ring(5, None), Requirements::default())
        .expect_err("0 does not reach 2")
        .to_string();
    assert!(error.contains("mesh") && error.contains("from rank 0 to rank 2"), "{error}");
    assert!(error.contains("choose ring or bidirectional_ring"), "{error}");
    // A line of cables.
    let open = ring(5, Some((0, 4)));
    let choose_by = |call, root, reach: &Reach| {
        choose(call, Rank(root), reach, &Policy::default(), Requirements::default())
    };
    let by = |call, root| choose_by(call, root, &open).expect("a line").algorithm;
    let down = Call { collective: Collective::Broadcast, ..call };
    assert_eq!([by(call, 0), by(down, 0), by(down, 1)], ["spanning_tree", "chain", "spanning_tree"]);
    // Ranks that nothing connects.
    let apart = Reach::new(5, |a, b| b.0 < 3 || a.0 >= 3);
    let error = choose_by(call, 0, &apart).expect_err("no connection").to_string();
    assert!(error.contains("from rank 0 to rank 4") && error.contains("order of the cables"), "{error}");
    assert!(choose_by(down, 1, &apart).is_err());
    // Forwarding plans cannot handle unequal blocks, but the missing cable is the reason to report.
    let exchange = Call { collective: Collective::AllToAll, ..call };
    let uneven = Requirements { uneven: true, ..Requirements::default() };
    let error = choose(exchange, Rank(0), &ring(5, None), &Policy::default(), uneven).expect_err("a ring");
    let instead = Vec::new();
    let (algorithm, collective, from, to) = ("direct", Collective::AllToAll, Rank(0), Rank(2));
    assert_eq!(error, PlanError::NoCable { algorithm, collective, from, to, instead });
}

/// The plans between neighbors are not reproducible, so `ring` was named, and others that need the cable too
/// (`chaos --seed 22 --round 211 --transport verbs --fabric usb4`).
#[test]
fn where_results_must_be_reproducible_a_missing_cable_is_still_the_reason() {
    let call = Call { collective: Collective::AllReduce, ranks: 4, block_bytes: 4 };
    let requirements = Requirements { numerics: Numerics::Reproducible, ..Requirements::default() };
    let apart = Reach::new(4, |a, b| a.0 / 2 == b.0 / 2);
    let error =
        choose(call, Rank(0), &apart, &Policy::default(), requirements).expect_err("0 does not reach 2");
    let PlanError::NoCable { from: Rank(0), to: Rank(2), instead, .. } = &error else { panic!("{error}") };
    assert!(!instead.contains(&"ring"), "{error}");
    // Contributions are relayed to one rank, which adds them in the canonical order.
    let choice = choose(call, Rank(0), &ring(4, None), &Policy::default(), requirements);
    assert_eq!(choice.map(|choice| choice.algorithm), Ok("spanning_tree"));
}

#[test]
fn ranks_of_several_hosts_take_hierarchical_plans_where_these_can_do_the_call() {
    let by = |collective, block_bytes, requirements, names: &str| {
        let call = Call { collective, ranks: 4, block_bytes };
        let policy = policy(names, "version = 1");
        choose(call, Rank(0), &Reach::complete(), &policy, requirements).expect("a plan").algorithm
    };
    let two = Requirements { hosts: Hosts::Blocks(2), ..Requirements::default() };
    let (reduce, gather) = (Collective::AllReduce, Collective::AllGather);
    assert_eq!(by(reduce, 1 << 20, two, ""), "hierarchical");
    assert_eq!(by(reduce, 1 << 20, Requirements::default(), ""), "rsag_mesh");
    assert_eq!(by(reduce, 1 << 10, two, ""), "mesh", "one stage");
    assert_eq!(by(reduce, 1 << 20, two, "^hierarchical"), "rsag_mesh");
    let same_bits = Requirements { numerics: Numerics::Reproducible, ..two };
    assert_eq!(by(reduce, 1 << 20, same_bits, ""), "rsag_mesh", "its sums have an order of their own");
    assert_eq!(by(gather, 1 << 20, same_bits, ""), "hierarchical");
    assert_eq!(by(gather, 1 << 20, Requirements { uneven: true, ..two }, ""), "hierarchical");
    assert_eq!(by(gather, 1 << 10, two, ""), "direct");
    // More ranks than hierarchical plans allow.
    let many = Call { collective: reduce, ranks: 300, block_bytes: 1 << 30 };
    let choice = choose(many, Rank(0), &Reach::complete(), &Policy::default(), two).expect("a plan");
    assert_eq!(choice.algorithm, "ring");
    // Only the first ranks of the hosts are connected with each other.
    let reach = Reach::new(4, |a, b| a.0 / 2 == b.0 / 2 || (a, b) == (Rank(0), Rank(2)) || a.0 + b.0 == 3);
    let call = Call { collective: reduce, ranks: 4, block_bytes: 1 << 20 };
    let choice = choose(call, Rank(0), &reach, &Policy::default(), two);
    assert_ne!(choice.map(|choice| choice.algorithm), Ok("hierarchical"));
}

#[test]
fn a_tuning_file_names_only_what_it_changes() {
    let tuning: Tuning = toml::from_str("mesh_bytes = 4096").expect("a known key");
    assert_eq!(tuning, Tuning { mesh_bytes: 4096, ..Tuning::default() });
    assert!(toml::from_str::<Tuning>("mesh_byte = 4096").is_err());
}

/// Returns the pairs of ranks between which a plan has messages, the lower rank first.
fn pairs(schedule: &crate::Schedule) -> BTreeSet<(u32, u32)> {
    let messages = schedule.steps().filter_map(|(id, step)| Some((id.rank, step.action.message()?.0.0)));
    messages.map(|(rank, peer)| (rank.min(peer), rank.max(peer))).collect()
}

/// Once a ring of cables in another order than the ranks' was used as a tree, with one cable idle.
#[test]
fn on_a_ring_of_cables_in_any_order_plans_are_those_of_a_ring_in_order_and_no_cable_is_idle() {
    const RANKS: u32 = 5;
    let order = [0, 2, 4, 1, 3];
    let place = |rank: Rank| order.iter().position(|one| *one == rank.0).expect("a rank");
    let in_order = Reach::new(RANKS, |a, b| [1, 4].contains(&a.0.abs_diff(b.0)));
    let turned = Reach::new(RANKS, |a, b| [1, 4].contains(&place(a).abs_diff(place(b))));
    for (collective, block_bytes) in Collective::ALL.into_iter().flat_map(|c| [(c, 8), (c, 4 << 20)]) {
        let root = if collective.has_root() { Rank(3) } else { Rank(0) };
        let call = Call { collective, ranks: RANKS, block_bytes };
        let chosen = |reach: &Reach| {
            let requirements = Requirements::default().within(RANKS, reach);
            (choose(call, root, reach, &Policy::default(), requirements).expect("a plan"), requirements)
        };
        let (choice, requirements) = chosen(&turned);
        let spec = Spec::new(collective, RANKS).and_then(|spec| spec.with_root(root)).expect("in range");
        let schedule = requirements.place(spec).and_then(|spec| plan::plan(&spec, choice.algorithm));
        let schedule = schedule.expect("a plan");
        verify(&schedule, Credits(0)).unwrap_or_else(|fault| panic!("{collective}: {fault}"));
        assert_eq!((schedule.root, schedule.first_unconnected(&turned)), (root, None), "{collective}");
        if ["scan", "exclusive_scan", "sendrecv"].contains(&collective.name()) {
            assert_eq!(choice.algorithm, "spanning_tree", "the ranks' numbers are a part of the result");
            continue;
        }
        let is_tree = ["chain", "spanning_tree"].contains(&choice.algorithm);
        if !is_tree || choice.algorithm == "chain" {
            assert_eq!(choice, chosen(&in_order).0, "{collective}");
        }
        let cables = if is_tree { 4 } else { 5 };
        assert!(!(is_tree && collective.name() == "all_reduce" && block_bytes > 8), "{choice:?}");
        assert_eq!(pairs(&schedule).len(), cables, "{collective} {}", choice.algorithm);
    }
}

/// Once messages between neighbors of such a ring went along the tree, the whole line where that lacks their
/// cable.
#[test]
fn on_a_ring_in_another_order_a_message_between_neighbors_takes_their_cable_and_others_the_shorter_way() {
    for order in [vec![0, 1, 2, 4, 3], vec![0, 2, 4, 1, 3], vec![0, 3, 1, 2, 5, 4, 6, 7]] {
        let ranks = order.len() as u32;
        let place = |rank: Rank| order.iter().position(|one| *one == rank.0).expect("a rank") as u32;
        let distance = |a: Rank, b: Rank| {
            let ahead = place(a).abs_diff(place(b));
            ahead.min(ranks - ahead)
        };
        let reach = Reach::new(ranks, |a, b| distance(a, b) == 1);
        let requirements = Requirements::default().within(ranks, &reach);
        for collective in [Collective::SendRecv, Collective::Scan, Collective::ExclusiveScan] {
            let spec = requirements.place(Spec::new(collective, ranks).expect("in range")).expect("a ring");
            let schedule = plan::plan(&spec, "spanning_tree").expect("a plan");
            verify(&schedule, Credits(0)).unwrap_or_else(|fault| panic!("{collective}: {fault}"));
            assert_eq!(schedule.first_unconnected(&reach), None, "{collective}");
            let last = if collective == Collective::SendRecv { ranks } else { ranks - 1 };
            let hops: u32 = (0..last).map(|r| distance(Rank(r), Rank(r).ahead(1, ranks))).sum();
            let messages = schedule.steps().filter(|(_, step)| step.action.message().is_some()).count();
            assert_eq!(messages as u32, 2 * hops, "each message is sent and received: {collective}");
        }
    }
}

#[test]
fn a_plan_for_one_rank_of_a_ring_in_another_order_is_its_part_of_the_plan_for_all() {
    let ring = RingOrder::new(&[0, 2, 4, 1, 3].map(Rank));
    for algorithm in plan::ALGORITHMS.iter().filter(|algorithm| algorithm.takes_ring_order()) {
        let root = if algorithm.collective.has_root() { Rank(3) } else { Rank(0) };
        let spec = Spec::new(algorithm.collective, 5).and_then(|spec| spec.with_root(root));
        let spec = spec.and_then(|spec| spec.with_ring(ring.expect("an order"))).expect("of five ranks");
        let all = algorithm.plan(&spec).expect("a plan");
        for rank in (0..5).map(Rank) {
            let own = spec.only_for(rank).and_then(|spec| algorithm.plan(&spec)).expect("a plan");
            assert_eq!(own.programs[rank.index()], all.programs[rank.index()], "{}", algorithm.name);
        }
    }
}

/// Once a chain of all ranks was taken on rings also where a tree has half of its stages, and the way around
/// in one direction where there are two.
#[test]
fn on_a_ring_small_calls_take_few_stages_and_large_ones_both_directions() {
    let by = |collective, root, block_bytes| {
        let requirements = Requirements::default().within(6, &ring(6, None));
        let call = Call { collective, ranks: 6, block_bytes };
        choose(call, Rank(root), &ring(6, None), &Policy::default(), requirements).expect("a plan").algorithm
    };
    assert_eq!(by(Collective::AllReduce, 0, 128 << 10), "spanning_tree");
    assert_eq!(by(Collective::AllReduce, 0, 256 << 10), "bidirectional_ring");
    for (collective, small, large) in [
        (Collective::AllGather, "bidirectional_ring", "bidirectional_ring"),
        (Collective::ReduceScatter, "bidirectional_ring", "bidirectional_ring"),
        (Collective::Broadcast, "spanning_tree", "chain"),
        (Collective::Reduce, "spanning_tree", "chain"),
        (Collective::Gather, "spanning_tree", "spanning_tree"),
        (Collective::Scatter, "spanning_tree", "spanning_tree"),
        (Collective::Barrier, "ring", "ring"),
    ] {
        assert_eq!([8, 4 << 20].map(|bytes| by(collective, 0, bytes)), [small, large], "{collective}");
    }
}
