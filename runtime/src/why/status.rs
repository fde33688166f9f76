//! The status of one process: each of its communicators, the call in progress, and the wait of that call.
//!
//! Processes send it as JSON. Times are seconds before the status was taken, so clocks need not agree.

use crate::metrics::RankMetrics;
use serde::{Deserialize, Serialize};

/// Status of one process of a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ProcessStatus {
    /// Name of its host.
    pub host: String,
    /// Process id.
    pub pid: u32,
    /// Communicators of the process, the oldest first.
    pub communicators: Vec<CommunicatorStatus>,
    /// Communicators that the process is joining.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub joining: Vec<JoinStatus>,
    /// Latest time in which the process did not run, if there was one of a second or more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause: Option<PauseStatus>,
    /// Metrics of the ranks of the process.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub metrics: Vec<RankMetrics>,
}

/// A time in which a process did not run: a signal had stopped it, its host was asleep, or it got no core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PauseStatus {
    /// Length.
    pub seconds: f64,
    /// Time since it ended.
    pub ended: f64,
}

/// A communicator that a process is joining.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct JoinStatus {
    /// Call by which it is made from another one; empty for the first communicator of a job.
    pub made_by: String,
    /// Time since the process came.
    pub seconds: f64,
}

/// Status of one rank of a communicator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CommunicatorStatus {
    /// Number that all ranks of the communicator know.
    pub id: u64,
    /// Call by which it was made from another one; empty for the first communicator of a job.
    pub made_by: String,
    /// The rank.
    pub rank: u32,
    /// Number of ranks.
    pub size: u32,
    /// Number that tells ranks of one process apart, where they are threads.
    pub place: u64,
    /// Process id and host of each rank, in rank order; empty on most ranks of a large communicator.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<(u32, String)>,
    /// Name of the transport.
    pub transport: String,
    /// Time since the communicator was made.
    pub age: f64,
    /// Number of the latest collective that the rank has entered.
    pub entered: u64,
    /// The call in progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<CallStatus>,
    /// The latest calls that have ended, the latest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub past: Vec<PastCall>,
    /// The error with which the communicator has failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A call in progress.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CallStatus {
    /// Description with all arguments, such as `all_reduce of 1024 f32, op sum`.
    pub text: String,
    /// Name, such as `all_reduce` or `send to rank 1`.
    pub name: String,
    /// Number of the call among the communicator's collectives, or among the messages with that peer.
    pub number: u64,
    /// Digest of the arguments that must agree on all ranks.
    pub digest: u64,
    /// Kind of the call.
    pub kind: Kind,
    /// Other rank of a message; `None` for any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<u32>,
    /// Time since the call began.
    pub seconds: f64,
    /// Whether the message has a tag; its number and digest then mean nothing to the peer.
    #[serde(default)]
    pub is_tagged: bool,
    /// Number of further calls that run together with this one, in a group.
    #[serde(default)]
    pub others: usize,
    /// Wait of the call, if nothing has moved for some milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait: Option<Wait>,
}

/// Kind of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A collective.
    #[default]
    Collective,
    /// A message to one rank.
    Send,
    /// A message from one rank, or from any.
    Recv,
}

/// A wait in a call.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Wait {
    /// Time without progress.
    pub seconds: f64,
    /// The rank that the step waits for, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<u32>,
    /// Whether the step sends to that rank, and does not receive from it.
    #[serde(default)]
    pub sends: bool,
    /// Description of the step, such as `step 3 of ring: recv from rank 1`; empty if unknown.
    pub step: String,
    /// Rails to that rank, where the transport has named ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rails: Vec<RailStatus>,
}

/// Status of a rail between two ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RailStatus {
    /// Name of the local device.
    pub ours: String,
    /// Name of the peer's device.
    pub theirs: String,
    /// Whether the rail is up.
    pub is_up: bool,
}

/// A call that has ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PastCall {
    /// Description with all arguments.
    pub text: String,
    /// Name.
    pub name: String,
    /// Number of the call; see [`CallStatus::number`].
    pub number: u64,
    /// Digest; see [`CallStatus::digest`].
    pub digest: u64,
    /// Kind of the call.
    pub kind: Kind,
    /// Time since the call ended.
    pub seconds: f64,
    /// Whether the call was carried out.
    pub is_done: bool,
}

impl CommunicatorStatus {
    /// Returns the digest of the collective with this number, if it is in progress or one of the latest.
    pub(crate) fn digest_of(&self, number: u64) -> Option<u64> {
        let current = self.call.iter().map(|call| (call.kind, call.number, call.digest));
        let past = self.past.iter().map(|call| (call.kind, call.number, call.digest));
        let is_it = |(kind, of, _): &(Kind, u64, u64)| *kind == Kind::Collective && *of == number;
        current.chain(past).find(is_it).map(|(_, _, digest)| digest)
    }
}
