//! Files that users write or programs measure: hostfiles, device matrices, clusters, tuning, schedules.
//!
//! The fuzz targets and a test that replays their corpora share this module.

use collectives::{
    Collective, Schedule,
    schedule::InPlace,
    select::{
        Call, Names, Overrides, Requirements, Tuned, Tuning,
        price::{CallShape, Candidates, Effort, Model},
    },
    simulate::{Costs, simulate},
    verify::{Credits, DeviceRules, verify, verify_on_device},
};
use topology::{Cluster, DeviceMatrix, Hostfile, Rank, Speed};

/// Largest schedule and cluster, in steps and ranks, that a target works on further: it must stay fast.
const MAX_STEPS: usize = 2000;
const MAX_RANKS: u32 = 8;

/// Parses a hostfile in any format.
pub fn parse_hostfile(bytes: &[u8]) {
    let Ok(file) = Hostfile::parse(bytes) else { return };
    assert!(!file.hosts.is_empty());
    for (at, host) in file.hosts.iter().enumerate() {
        assert!(!host.name.is_empty() && !host.name.starts_with('-'));
        assert_eq!(file.position_of(&host.name), Some(at));
        assert_ne!(host.slots, Some(0));
        assert!(host.max_slots.is_none_or(|most| most >= host.slots.unwrap_or(1)));
    }
    assert!(file.devices.is_none_or(|devices| devices.ranks() as usize == file.hosts.len()));
}

/// Parses a device matrix: a valid one is square, symmetric, and survives formatting.
pub fn parse_device_matrix(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(matrix) = DeviceMatrix::parse(text) else { return };
    let ranks = matrix.ranks();
    for (from, to) in (0..ranks).flat_map(|from| (0..ranks).map(move |to| (Rank(from), Rank(to)))) {
        assert_eq!(matrix.rails(from, to).len(), matrix.rails(to, from).len());
        assert!(from != to || matrix.rails(from, to).is_empty());
    }
    assert_eq!(
        DeviceMatrix::parse(&matrix.to_json()).as_ref(),
        Ok(&matrix),
        "a formatted matrix can be read"
    );
    let order: Vec<u32> = (0..ranks).rev().collect();
    assert_eq!(matrix.reordered(&order).reordered(&order), matrix);
    let of_ranks = matrix.of_ranks(&[0, ranks - 1, 0]);
    assert!(of_ranks.rails(Rank(0), Rank(2)).is_empty(), "two ranks of one host have no cable");
}

/// Parses the file of a cluster, or of a fabric, and prices a call on a small one.
pub fn parse_cluster(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let _ = DeviceRules::of_fabric(text);
    let Ok(model) = Model::from_toml(text) else { return };
    let ranks = model.cluster.ranks();
    assert!(ranks >= 1 && model.cluster.hosts() <= ranks);
    let links = model.cluster.links().len() as u32;
    for (from, to) in (0..ranks.min(MAX_RANKS)).map(|rank| (Rank(rank), Rank(ranks - 1 - rank))) {
        let route = model.cluster.route(from, to);
        assert!(route.is_none_or(|route| route.links().iter().all(|link| *link < links)));
    }
    if ranks <= MAX_RANKS && links <= 64 {
        let _ = model.canonical();
        price(&model);
    }
}

/// Prices a call of all ranks of a model.
fn price(model: &Model) {
    let shape = CallShape {
        collective: Collective::AllReduce,
        ranks: model.cluster.ranks(),
        root: Rank(0),
        in_place: InPlace::No,
        requirements: Requirements::default(),
    };
    let names = Names::default();
    let Ok(candidates) = Candidates::new(model, shape, &model.cluster.reach(), &names) else { return };
    if let Ok(verdict) = candidates.price(1 << 16, &Tuning::default(), Effort::Pruned) {
        assert!(verdict.seconds >= 0.0, "{} s", verdict.seconds);
    }
}

/// Parses measurements, rules and costs: the files by which algorithms are chosen.
pub fn parse_tuning(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let _ = Costs::from_toml(text);
    if let Ok(tuned) = Tuned::from_toml(text) {
        for collective in Collective::ALL {
            for block_bytes in [0, 1 << 20, u64::MAX] {
                let choice = tuned.choose(Call { collective, ranks: 4, block_bytes });
                assert!(choice.is_none_or(|choice| choice.segments >= 1));
            }
        }
        // Numbers that are not equal to themselves are the only ones that formatting may change.
        let again = Tuned::from_toml(&tuned.to_toml()).expect("a formatted file can be read");
        assert_eq!(again.to_toml(), tuned.to_toml());
    }
    match Overrides::rules_from_toml(text) {
        Ok(rules) => {
            for rule in rules {
                assert!(!rule.bytes.is_empty() && !rule.ranks.is_empty(), "a rule that fits nothing");
            }
        }
        Err(error) => assert!(error.line <= text.matches('\n').count() + 1, "{error}"),
    }
}

/// Parses a schedule: a valid one can be formatted, and verified, and simulated if it is right.
pub fn parse_schedule(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(schedule) = Schedule::from_toml(text) else { return };
    let again = Schedule::from_toml(&schedule.to_toml()).expect("a formatted schedule can be read");
    assert_eq!(again.stable_hash(), schedule.stable_hash());
    let steps: usize = schedule.programs.iter().map(|program| program.steps.len()).sum();
    if steps > MAX_STEPS || schedule.ranks() > MAX_RANKS || schedule.chunks > 64 {
        return;
    }
    if verify(&schedule, Credits(0)).is_err() {
        return;
    }
    let Ok(layout) = schedule.layout(1000, 4) else { return };
    let _ = verify_on_device(&schedule, &layout, 4, DeviceRules::APPLE_TB5);
    let cluster = Cluster::mesh(schedule.ranks(), Speed::new(1.0, 40.0));
    simulate(&schedule, &layout, 4, &cluster, &Costs::rdma()).expect("a right schedule ends");
}
