//! Tests of the planners, the passes and the verifier, in one binary.

mod execution;
mod faults;
mod fusing;
mod garbage;
mod interpreter;
mod mutations;
mod patterns;
mod projections;
mod quantized;
mod random_mutations;
mod results;
mod small_plans;
mod sweep;
mod text;
