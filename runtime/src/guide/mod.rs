//! Guide: first steps, RDMA, failures, and own algorithms and transports.
//!
//! | page | for |
//! |---|---|
//! | [`getting_started`] | programs: joining a job, calls, memory, groups, calls in the background |
//! | [`rdma`] | cables and devices: choosing them, memory that moves without a copy, counters |
//! | [`failures`] | errors and remedies: dead peers, mismatches, time limits, going on with fewer ranks |
//! | [`extending`] | engineers: a new algorithm, and a new transport |
//!
//! The examples are compiled and run as tests. The modules of this guide contain no code.

pub mod extending;
pub mod failures;
pub mod getting_started;
pub mod rdma;
