//! Micro-benchmarks of tbccl; the benchmarks themselves are under `benches/`.
