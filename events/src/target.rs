//! Targets: names of the sources of events, by which logs are filtered.

/// Start and end of a communicator: versions, hosts, transports, options.
pub const INIT: &str = "tbccl::init";
/// The rendezvous: connections, members, refused connections.
pub const BOOTSTRAP: &str = "tbccl::bootstrap";
/// Shared memory.
pub const SHM: &str = "tbccl::shm";
/// Connections over TCP.
pub const TCP: &str = "tbccl::tcp";
/// RDMA devices and rails.
pub const VERBS: &str = "tbccl::verbs";
/// Measurements of the machine.
pub const CALIBRATION: &str = "tbccl::calibration";
/// Algorithms of calls.
pub const SELECTION: &str = "tbccl::selection";
/// Failed calls and communicators, flight recorders, reports of hangs.
pub const FAILURE: &str = "tbccl::failure";
/// The interfaces for MLX.
pub const MLX: &str = "tbccl::mlx";

/// All targets.
pub const ALL: [&str; 9] = [INIT, BOOTSTRAP, SHM, TCP, VERBS, CALIBRATION, SELECTION, FAILURE, MLX];

/// Prefix of all targets; as a target of a filter, it means all of them.
pub(crate) const ROOT: &str = "tbccl";
