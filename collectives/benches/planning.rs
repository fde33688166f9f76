//! Time for a rank to plan its own part of a plan for 1024 ranks, by every algorithm that supports 1024
//! ranks.
//!
//! Rank 0 is the root of rooted collectives, since the root has the most steps. The aim is less than 5 ms
//! each. `verify` is the time to plan and verify a plan for 64 ranks.

use collectives::plan::ALGORITHMS;
use collectives::sweep::Case;
use collectives::verify::Credits;
use collectives::{Rank, Spec};
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use std::{hint::black_box, time::Duration};

fn projection(c: &mut Criterion) {
    let mut group = c.benchmark_group("projection/1024");
    for algorithm in ALGORITHMS.iter().filter(|algorithm| algorithm.check_ranks(1024).is_ok()) {
        let spec = Spec::new(algorithm.collective, 1024).and_then(|spec| spec.only_for(Rank(0)));
        let id = BenchmarkId::new(algorithm.collective.name(), algorithm.name);
        group.bench_with_input(id, &spec.expect("in range"), |b, spec| {
            b.iter(|| algorithm.plan(black_box(spec)).expect("a plan"));
        });
    }
    group.finish();
}

fn verifying(c: &mut Criterion) {
    let mut group = c.benchmark_group("verify/64");
    for algorithm in ALGORITHMS.iter().filter(|algorithm| algorithm.check_ranks(64).is_ok()) {
        let case = Case { algorithm, spec: Spec::new(algorithm.collective, 64).expect("in range") };
        let id = BenchmarkId::new(algorithm.collective.name(), algorithm.name);
        group.bench_with_input(id, &case, |b, case| b.iter(|| case.verify(Credits(0)).expect("it is right")));
    }
    group.finish();
}

fn quick() -> Criterion {
    let brief = Criterion::default().warm_up_time(Duration::from_millis(100));
    brief.measurement_time(Duration::from_millis(400)).sample_size(10).nresamples(1000).without_plots()
}

criterion_group! { name = planning; config = quick(); targets = projection, verifying }
criterion_main!(planning);
