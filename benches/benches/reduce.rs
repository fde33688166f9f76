//! Throughput of the reduction kernels.
//!
//! - `kernel`: every type and operation, on operands in the first-level cache, into the first operand.
//! - `small`: a few elements, where the call overhead dominates.
//! - `lookup`: the time to find the kernel of an operation.
//! - `threads`: one thread against two, for the threshold in `kernels::parallel`.
//! - `copy`: plain copies.
//! - `pack`: packing, unpacking, and reducing packed data, for a chunk in the second-level cache and one in
//!   memory. The bytes are those of the elements.
//!
//! The assembly shows whether the loops are vectorized:
//!
//! ```text
//! CARGO_PROFILE_RELEASE_LTO=off cargo rustc --release --lib -- \
//!     --emit asm -C codegen-units=1 -C symbol-mangling-version=v0
//! ```
//!
//! In `target/release/deps/tbccl-*.s`, look for functions with `compiled`, the instruction set (`Avx512`),
//! the type and the operation (`Add`) in their names; the sums, products and means of f16 are in `f16c`
//! (`fcvt` on aarch64).
//!
//! # Safety
//! The kernels get pointers to whole buffers and counts that fill them.

use benches::Buffer;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use std::{hint::black_box, time::Duration};
use tbccl::{
    Codec, DType, ReduceOp,
    kernels::{self, Reducer, Threads, quantize::Packer},
};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// A byte that makes a small finite number in every type.
const FILL: u8 = 0x3c;

fn kernel(c: &mut Criterion) {
    let mut group = c.benchmark_group(format!("kernel/{}", kernels::isa_name()));
    group.measurement_time(Duration::from_millis(300)).warm_up_time(Duration::from_millis(100));
    let bytes = 8 * KIB;
    let (mut a, b) = (Buffer::new(bytes, FILL), Buffer::new(bytes, FILL));
    for (dtype, op) in DType::ALL.into_iter().flat_map(|t| ReduceOp::ALL.map(|op| (t, op))) {
        let Ok(reducer) = Reducer::new(dtype, op) else { continue };
        let count = bytes / dtype.size();
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_function(BenchmarkId::new(dtype.name(), op.name()), |bencher| {
            let dst = a.as_mut_ptr();
            // SAFETY: the buffers hold `count` elements, and the destination is the first operand.
            bencher.iter(|| unsafe {
                reducer.reduce_last(dst, dst, b.as_ptr(), black_box(count), black_box(3));
            });
        });
    }
}

fn small(c: &mut Criterion) {
    let mut group = c.benchmark_group("small");
    group.measurement_time(Duration::from_millis(300)).warm_up_time(Duration::from_millis(100));
    let (mut a, b) = (Buffer::new(KIB, FILL), Buffer::new(KIB, FILL));
    for dtype in [DType::F32, DType::F16, DType::Bf16, DType::I8] {
        let reducer = Reducer::new(dtype, ReduceOp::Sum).expect("a sum of anything");
        for count in [1usize, 2, 4, 7, 8, 15, 16, 31, 63, 64] {
            group.bench_function(BenchmarkId::new(dtype.name(), count), |bencher| {
                let dst = a.as_mut_ptr();
                // SAFETY: the buffers hold `count` elements, and the destination is the first operand.
                bencher.iter(|| unsafe { reducer.reduce(dst, dst, b.as_ptr(), black_box(count)) });
            });
        }
    }
}

fn lookup(c: &mut Criterion) {
    c.bench_function("lookup", |bencher| {
        bencher.iter(|| Reducer::new(black_box(DType::Bf16), black_box(ReduceOp::Max)));
    });
}

fn threads(c: &mut Criterion) {
    let mut group = c.benchmark_group("threads");
    group.measurement_time(Duration::from_secs(1)).warm_up_time(Duration::from_millis(200)).sample_size(30);
    for dtype in [DType::F32, DType::Bf16] {
        let reducer = Reducer::new(dtype, ReduceOp::Sum).expect("a sum of floats");
        for bytes in
            [64 * KIB, 128 * KIB, 256 * KIB, 512 * KIB, MIB, 2 * MIB, 4 * MIB, 8 * MIB, 16 * MIB, 64 * MIB]
        {
            let (mut a, b) = (Buffer::new(bytes, FILL), Buffer::new(bytes, FILL));
            let count = bytes / dtype.size();
            group.throughput(Throughput::Bytes(bytes as u64));
            for n in [1, 2] {
                let id = BenchmarkId::new(format!("{dtype}/{n}"), bytes / KIB);
                group.bench_function(id, |bencher| {
                    let dst = a.as_mut_ptr();
                    // SAFETY: the buffers hold `count` elements, and the destination is the first operand.
                    bencher.iter(|| unsafe {
                        reducer.reduce_split(Threads::up_to(n), dst, dst, b.as_ptr(), black_box(count), None);
                    });
                });
            }
        }
    }
}

fn copy(c: &mut Criterion) {
    let mut group = c.benchmark_group("copy");
    group
        .measurement_time(Duration::from_millis(500))
        .warm_up_time(Duration::from_millis(100))
        .sample_size(30);
    for bytes in [KIB, 64 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB] {
        let (mut dst, src) = (Buffer::new(bytes, 0), Buffer::new(bytes, FILL));
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_function(BenchmarkId::from_parameter(bytes / KIB), |bencher| {
            // SAFETY: both buffers hold `bytes` bytes.
            bencher.iter(|| unsafe { kernels::copy(dst.as_mut_ptr(), src.as_ptr(), black_box(bytes)) });
        });
    }
}

fn pack(c: &mut Criterion) {
    let mut group = c.benchmark_group(format!("pack/{}", kernels::isa_name()));
    group.measurement_time(Duration::from_millis(500)).warm_up_time(Duration::from_millis(100));
    for bytes in [256 * KIB, 32 * MIB] {
        let count = bytes / size_of::<f32>();
        let (mut a, b) = (Buffer::new(bytes, FILL), Buffer::new(bytes, FILL));
        let mut packed = Buffer::new(bytes, 0);
        group.throughput(Throughput::Bytes(bytes as u64));
        for codec in Codec::ALL {
            let packer = Packer::new(codec);
            let id = |what: &str| BenchmarkId::new(format!("{codec}/{what}"), bytes);
            let (dst, src) = (a.as_mut_ptr().cast::<f32>(), b.as_ptr().cast::<f32>());
            group.bench_function(id("encode"), |bencher| {
                let packed = packed.as_mut_ptr();
                // SAFETY: the buffers hold `count` elements, and the packed buffer is larger than the packed
                // data.
                bencher.iter(|| unsafe { packer.encode(packed, src, black_box(count)) });
            });
            group.bench_function(id("decode"), |bencher| {
                // SAFETY: as above.
                bencher.iter(|| unsafe { packer.decode(dst, packed.as_ptr(), black_box(count)) });
            });
            group.bench_function(id("decode_add"), |bencher| {
                // SAFETY: as above; the destination is the local operand.
                bencher
                    .iter(|| unsafe { packer.decode_add(dst, dst, packed.as_ptr(), black_box(count), None) });
            });
        }
    }
}

criterion_group!(benches, kernel, small, lookup, threads, copy, pack);
criterion_main!(benches);
