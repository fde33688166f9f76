//! Simulated events per second: `cargo bench -p tbccl-collectives`.

#![allow(missing_docs, reason = "criterion's macros make public items")]

use collectives::{
    Collective, Spec, plan,
    simulate::{Costs, simulate},
};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use topology::{Cluster, Speed, Tier};

/// Returns a cluster below three tiers of switches, the middle tier with half of the uplink bandwidth.
fn fat_tree(hosts: u32) -> Cluster {
    let tier = |hosts, oversubscription| Tier { hosts, oversubscription, latency: 1e-6 };
    let tiers = [tier(16, 1.0), tier(256, 2.0), tier(4096, 1.0)];
    Cluster::switched(hosts, (1, topology::IntraHost::default()), Speed::new(2.0, 100.0), &tiers)
        .expect("it fits")
}

fn simulations(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("simulate");
    group.sample_size(10);
    let cases = [
        ("rsag_mesh", 64, 1 << 26, Cluster::mesh(4, Speed::new(5.0, 75.0))),
        ("ring", 8, 1 << 26, Cluster::ring(8, Speed::new(5.0, 75.0))),
        ("double_binary_tree", 4, 1 << 26, fat_tree(512)),
        ("recursive_doubling", 1, 1 << 12, fat_tree(4096)),
    ];
    for (algorithm, segments, bytes, cluster) in cases {
        let spec =
            Spec::new(Collective::AllReduce, cluster.ranks()).and_then(|spec| spec.with_segments(segments));
        let schedule = spec.and_then(|spec| plan::plan(&spec, algorithm)).expect("a plan");
        let layout = schedule.layout(bytes / 4, 4).expect("small");
        let run = || simulate(&schedule, &layout, 4, &cluster, &Costs::rdma()).expect("it runs");
        group.throughput(Throughput::Elements(run().events));
        let id = BenchmarkId::new(algorithm, cluster.ranks());
        group.bench_function(id, |bencher| bencher.iter(|| run().makespan));
    }
    group.finish();
}

criterion_group!(benches, simulations);
criterion_main!(benches);
