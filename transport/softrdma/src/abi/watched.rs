//! The objects of a context that asynchronous events can be about.

/// The objects of a context, as addresses, and the last reported state of its port.
#[derive(Debug, Default)]
pub(super) struct Watched {
    pub(super) cqs: Vec<usize>,
    pub(super) qps: Vec<usize>,
    pub(super) srqs: Vec<usize>,
    /// Whether the port was up at the last look.
    pub(super) was_up: bool,
    pub(super) gid_changes: u32,
}
