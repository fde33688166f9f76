//! `all_reduce` with packed messages, compared with sums in double precision.
//!
//! All algorithms run on several ranks, between threads and between processes. Results must be within the
//! error bound, have the same bits everywhere, and move fewer bytes.

use collectives::{
    Collective, Numerics, Spec,
    plan::{algorithms, plan},
    verify::{Credits, verify},
};
use proptest::prelude::*;
use std::thread;
use tbccl::{BlockLen, Codec, Communicator, Config, Counters, Error, ReduceOp, SelectionConfig};

const INT8: Codec = Codec::Int8(BlockLen::B128);

#[derive(Clone, Debug)]
struct Case {
    algorithm: &'static str,
    ranks: u32,
    segments: u32,
    codec: Codec,
    op: ReduceOp,
    in_place: bool,
    /// Input of each rank.
    inputs: Vec<Vec<f32>>,
}

fn config(case: &Case) -> Config {
    Config {
        selection: SelectionConfig {
            algorithm: Some(case.algorithm.to_owned()),
            segments: case.segments,
            ..SelectionConfig::default()
        },
        slab_bytes: Some(8 << 20),
        ..Config::default()
    }
}

/// Returns the result of `call` on every rank, with the counters of the rank's links.
fn on_each_rank<T: Send>(
    ranks: u32,
    config: &Config,
    call: impl Fn(&mut Communicator) -> T + Sync,
) -> Vec<(T, Counters)> {
    let comms = Communicator::local(ranks, config).expect("memory for a test");
    thread::scope(|scope| {
        let call = &call;
        let spawn = |mut comm: Communicator| {
            scope.spawn(move || {
                let before = comm.counters();
                let result = call(&mut comm);
                let counters = comm.counters() - before;
                comm.barrier().expect("all come");
                (result, counters)
            })
        };
        let threads: Vec<_> = comms.into_iter().map(spawn).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

fn run(case: &Case) -> Vec<Vec<f32>> {
    let results = on_each_rank(case.ranks, &config(case), |comm| {
        let mut data = case.inputs[comm.rank().index()].clone();
        if case.in_place {
            comm.all_reduce_quantized_in_place(&mut data, case.op, case.codec).expect("right");
            return data;
        }
        let mut result = vec![f32::NAN; data.len()];
        comm.all_reduce_quantized(&data, &mut result, case.op, case.codec).expect("right");
        result
    });
    results.into_iter().map(|(result, _)| result).collect()
}

fn encodings(case: &Case) -> u32 {
    let spec = Spec::new(Collective::AllReduce, case.ranks).expect("in range").with_codec(Some(case.codec));
    verify(&plan(&spec, case.algorithm).expect("a plan"), Credits(0)).expect("right").encodings
}

/// Returns the sum in double precision, and the error bound, which depends on the largest magnitude of each
/// rank.
fn exact(case: &Case) -> (Vec<f64>, f64) {
    let count = case.inputs[0].len();
    let share = if case.op == ReduceOp::Avg { f64::from(case.ranks) } else { 1.0 };
    let sum = |at: usize| case.inputs.iter().map(|input| f64::from(input[at])).sum::<f64>() / share;
    let largest = |input: &Vec<f32>| input.iter().fold(0.0, |most: f64, x| most.max(f64::from(x.abs())));
    let magnitudes = case.inputs.iter().map(largest).sum();
    ((0..count).map(sum).collect(), case.codec.error_bound(encodings(case), case.ranks, magnitudes) / share)
}

/// Runs a case; returns the largest error relative to the bound.
fn check(case: &Case) -> f64 {
    let results = run(case);
    let bits = |result: &[f32]| result.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    let (expected, bound) = exact(case);
    for (rank, result) in results.iter().enumerate() {
        assert!(bits(result) == bits(&results[0]), "rank {rank} has other bits than rank 0");
    }
    let errors =
        results[0].iter().zip(&expected).map(|(found, expected)| (f64::from(*found) - expected).abs());
    let largest = errors.fold(0.0, f64::max);
    assert!(largest <= bound, "off by {largest}, and {bound} is allowed");
    largest / bound
}

fn any_case() -> impl Strategy<Value = Case> {
    let names: Vec<&str> = algorithms(Collective::AllReduce).map(|a| a.name).collect();
    let element = prop_oneof![8 => -1.0f32..1.0, 1 => -1e3f32..1e3, 1 => Just(0.0f32), 1 => -1e-35f32..1e-35];
    let shape = (2u32..=8, prop_oneof![3 => 0usize..70, 2 => 300usize..1200, 1 => 4000usize..5000]);
    let input = shape.prop_flat_map(move |(ranks, count)| {
        let input = prop::collection::vec(element.clone(), count);
        prop::collection::vec(input, ranks as usize)
    });
    let codec = prop::sample::select(Codec::ALL.to_vec());
    let op = prop::sample::select(vec![ReduceOp::Sum, ReduceOp::Avg]);
    (input, prop::sample::select(names), prop::sample::select(vec![1u32, 2, 5]), codec, op, any::<bool>())
        .prop_map(|(inputs, algorithm, segments, codec, op, in_place)| {
            let ranks = inputs.len() as u32;
            Case { algorithm, ranks, segments, codec, op, in_place, inputs }
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn results_are_within_the_bound_and_the_same_on_every_rank(case in any_case()) {
        check(&case);
    }
}

/// Returns pseudo-random elements from -1 to 1.
fn noise(rank: u32, count: usize) -> Vec<f32> {
    let element = |at: usize| {
        let mut x = (u64::from(rank) << 32 | at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(element).collect()
}

/// A bound a hundred times larger than the actual error would be useless.
#[test]
fn every_algorithm_keeps_the_bound_and_none_by_far() {
    for algorithm in algorithms(Collective::AllReduce).map(|a| a.name) {
        for (ranks, codec) in (2..=8).flat_map(|n| Codec::ALL.map(|codec| (n, codec))) {
            let inputs = (0..ranks).map(|rank| noise(rank, 10_000)).collect();
            let (segments, op, in_place) = (1 + ranks % 3, ReduceOp::Sum, ranks % 2 == 0);
            let case = Case { algorithm, ranks, segments, codec, op, in_place, inputs };
            let share = check(&case);
            assert!(share > 0.01, "{algorithm} on {ranks} ranks, {codec}: {share} of the bound");
        }
    }
}

#[test]
fn a_quarter_or_half_of_the_bytes_is_moved() {
    const COUNT: usize = 1 << 18;
    for algorithm in algorithms(Collective::AllReduce).map(|a| a.name) {
        let selection =
            SelectionConfig { algorithm: Some(algorithm.to_owned()), ..SelectionConfig::default() };
        let config = Config { selection, ..Config::default() };
        let moved = |codec: Option<Codec>| -> f64 {
            let results = on_each_rank(4, &config, |comm| {
                let (data, mut result) = (noise(comm.rank().0, COUNT), vec![0.0; COUNT]);
                match codec {
                    None => comm.all_reduce(&data, &mut result, ReduceOp::Sum).expect("right"),
                    Some(codec) => {
                        comm.all_reduce_quantized(&data, &mut result, ReduceOp::Sum, codec).expect("right");
                    }
                }
            });
            results.iter().map(|(_, counters)| counters.moved_bytes as f64).sum()
        };
        let plain = moved(None);
        // 128 elements share a scale of four bytes.
        let ratio = moved(Some(INT8)) / plain;
        assert!((ratio - 132.0 / 512.0).abs() < 0.001, "{algorithm}: {ratio}");
        let ratio = moved(Some(Codec::Bf16)) / plain;
        assert!((ratio - 0.5).abs() < 0.001, "{algorithm}: {ratio}");
    }
}

#[test]
fn a_number_that_is_not_finite_is_noticed_on_every_rank() {
    for (codec, value) in [(INT8, f32::INFINITY), (INT8, f32::NAN), (Codec::Bf16, f32::INFINITY)] {
        let mut inputs: Vec<Vec<f32>> = (0..3).map(|rank| noise(rank, 1000)).collect();
        inputs[1][500] = value;
        let (op, in_place, segments) = (ReduceOp::Sum, false, 1);
        for algorithm in ["ring", "mesh"] {
            let case = Case { algorithm, ranks: 3, segments, codec, op, in_place, inputs: inputs.clone() };
            for result in run(&case) {
                assert!(!result[500].is_finite(), "{algorithm}, {codec}: {}", result[500]);
                let spoiled = result.iter().filter(|x| !x.is_finite()).count();
                assert!(spoiled <= 128, "{algorithm}, {codec}: {spoiled} elements");
            }
        }
    }
}

#[test]
fn what_cannot_be_packed_is_refused_and_harms_nothing() {
    let results = on_each_rank(2, &Config::default(), |comm| {
        let mut data = [1.0f32; 10];
        let op = comm.all_reduce_quantized_in_place(&mut data, ReduceOp::Max, INT8).expect_err("not max");
        let length =
            comm.all_reduce_quantized(&[1.0; 3], &mut data, ReduceOp::Sum, INT8).expect_err("3 are not 10");
        comm.set_numerics(Numerics::Reproducible);
        let order =
            comm.all_reduce_quantized_in_place(&mut data, ReduceOp::Sum, INT8).expect_err("not reproducible");
        comm.set_numerics(Numerics::Fast);
        comm.all_reduce_quantized_in_place(&mut data, ReduceOp::Sum, INT8).expect("nothing has happened");
        assert_eq!(comm.encodings_of(10, INT8).expect("a plan"), 1);
        ([op, length, order].map(|error| error.to_string()), data)
    });
    for (([op, length, order], data), _) in results {
        assert!(op.contains("choose sum or avg"), "{op}");
        assert!(length.contains("10 elements where 3"), "{length}");
        assert!(order.contains("not reproducible"), "{order}");
        assert!(data.iter().all(|x| (x - 2.0).abs() < 0.02), "{data:?}");
    }
}

#[test]
fn ranks_that_pack_differently_are_told_so() {
    for codecs in [[Some(INT8), Some(Codec::Bf16)], [Some(INT8), None]] {
        let comms = Communicator::local(2, &Config::default()).expect("memory for a test");
        let errors = thread::scope(|scope| {
            let spawn = |mut comm: Communicator| {
                scope.spawn(move || {
                    let mut data = noise(0, 100_000);
                    let result = match codecs[comm.rank().index()] {
                        Some(codec) => comm.all_reduce_quantized_in_place(&mut data, ReduceOp::Sum, codec),
                        None => comm.all_reduce_in_place(&mut data, ReduceOp::Sum),
                    };
                    result.expect_err("they disagree")
                })
            };
            let threads: Vec<_> = comms.into_iter().map(spawn).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect::<Vec<Error>>()
        });
        for error in errors.iter().map(ToString::to_string) {
            assert!(error.contains("packed as int8"), "{error}");
        }
    }
}

/// `tbccl bench` checks the bounds, and that all ranks have the same bits, between processes.
#[test]
fn processes_get_results_within_the_bound_over_every_transport() {
    for (transport, codec) in [("shm", "int8"), ("shm", "bf16"), ("tcp", "int8"), ("tcp", "int8/64")] {
        let mut bench = support::tbccl();
        bench.args(["bench", "all_reduce", "--ranks", "3", "-b", "1K", "-e", "1M", "-f", "32", "-n", "3"]);
        let output = bench
            .args(["--transport", transport, "--codec", codec, "--json", "-"])
            .output()
            .expect("it runs");
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{transport}, {codec}: {err}");
        let rows: Vec<serde_json::Value> =
            out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        assert_eq!(rows.len(), 3, "{out}");
        for row in rows {
            let error = row["error"].as_f64().expect("a number");
            // The inputs of the benchmark are integers, which bf16 may represent exactly.
            let lossy = error > 0.0 || codec == "bf16";
            assert!(row["wrong"] == 0 && lossy && error < 0.2, "{row}");
            assert_eq!(row["codec"], codec, "{row}");
        }
    }
}

/// Two nodes of a fabric exchange packed chunks of odd lengths.
#[cfg(target_os = "linux")]
#[test]
fn ranks_on_rdma_devices_get_results_within_the_bound() {
    use crate::TBCCL;
    use support::tbccl_with_software_device as tbccl;
    for profile in ["apple-tb5", "ib"] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("fabric.toml");
        let fabric = format!(
            "profile = '{profile}'
            [[node]]
            name = 'a'
            device = [{{ name = 'en2' }}]
            [[node]]
            name = 'b'
            device = [{{ name = 'en2' }}]
            [[cable]]
            ends = ['a/en2', 'b/en2']"
        );
        std::fs::write(&file, fabric).expect("writable");
        let mut tbccl = tbccl();
        tbccl.args(["fabric", "run", "--timeout", "60", "--transport", "verbs"]).arg("--dir");
        tbccl.arg(folder.path().join("shared")).arg("--fabric").arg(&file).arg("--").args([TBCCL, "bench"]);
        tbccl.args(["all_reduce", "--codec", "int8", "-b", "1204", "-e", "1M", "-f", "29", "-n", "3"]);
        let output = tbccl.args(["--json", "-"]).output().expect("it starts");
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{profile}: {err}");
        assert_eq!(
            out.lines().filter(|line| line.contains("\"wrong\":0")).count(),
            3,
            "{profile}: {out}{err}"
        );
        assert!(out.contains("\"transport\":\"verbs\""), "{profile}: {out}");
    }
}

#[test]
fn the_bench_refuses_what_cannot_be_packed() {
    for (args, message) in [
        (&["all_gather", "--codec", "int8"][..], "only messages of all_reduce"),
        (&["all_reduce", "--codec", "int8", "-d", "float64"], "only float32"),
        (&["all_reduce", "--codec", "int8", "-o", "max"], "for sum and avg"),
        (&["all_reduce", "--codec", "int9"], "did you mean `int8`"),
    ] {
        let mut bench = support::tbccl();
        let output = bench.arg("bench").args(args).args(["--ranks", "2"]).output().expect("it runs");
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && err.contains(message), "{args:?}: {err}");
    }
}
