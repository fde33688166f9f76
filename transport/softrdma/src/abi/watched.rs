//! The objects of a context that asynchronous events can be about.

/// The objects of a context, as addresses.
#[derive(Debug, Default)]
pub(super) struct Watched {
    pub(super) cqs: Vec<usize>,
    pub(super) qps: Vec<usize>,
    pub(super) srqs: Vec<usize>,
    /// The port as it was when last looked at.
    pub(super) was_up: bool,
    pub(super) gid_changes: u32,
}
