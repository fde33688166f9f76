//! Calibration: costs of this machine, measured once and kept in a file of the user.
//!
//! | module | purpose |
//! |---|---|
//! | `ends` | the two ends of the rings that are measured |
//! | `fingerprint` | the machine that a calibration describes |
//! | `measure` | the measurement, by two threads of this process |
//! | `record` | the results, and the thresholds that follow from them |
//! | `store` | the file and its lock |
//!
//! The first job of a machine measures how long two of its cores take to exchange messages in each way that
//! shared memory has: staged, read in place, and read by system call. Rank 0 does so before it joins, and the
//! ranks of its host take its thresholds from its arena. Later jobs read the file.
//!
//! Invariants: plans never depend on a calibration. It decides only how a sender passes a message on, which
//! the receiver learns from the message. A calibration that fails in any way leaves the defaults.
//!
//! Not here: algorithms are measured by `tbccl tune`, and whether pieces are stored past the caches is found
//! out by each sender (`transport::ring`).

mod ends;
mod fingerprint;
mod measure;
mod record;
mod store;

pub use fingerprint::Fingerprint;
pub(crate) use measure::measure;
pub(crate) use record::Thresholds;
pub use record::{Combine, ExchangeCost, Gather, Record, Seen};
pub use store::{Calibration, StoreError};
pub(crate) use store::{default_path, keep, kept};
