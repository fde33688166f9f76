//! The trace of a communicator: from its options to its file.
//!
//! The file is written once: when a call fails, or when the communicator closes. Clocks are compared at the
//! start and before the file is written, so that the samples enclose the events.

use super::{Communicator, Identifier, watch::Peers};
use crate::{
    Config,
    error::{Error, PeerName},
    trace::{Trace, TraceOptions, TracedRank},
};
use bootstrap::Connection;
use std::sync::Arc;
use topology::Rank;

/// Begins the trace of a rank, if the options ask for one.
pub(super) fn begin(
    config: &Config,
    (rank, names, transport): (Rank, &Arc<[PeerName]>, &'static str),
    identifier: &Identifier,
    connection: Option<&mut Connection>,
) -> Option<Arc<Trace>> {
    let folder = config.trace.folder.as_deref()?;
    let traced = TracedRank {
        rank,
        names: Arc::clone(names),
        transport,
        communicator: name_of(identifier, connection.is_none()),
        made_by: identifier.made_by.clone(),
    };
    let options = TraceOptions {
        folder,
        events: config.trace.events,
        host_id: &config.host_id,
        lanes: Communicator::LANES,
    };
    Trace::new(options, traced, connection).map(Arc::new)
}

/// Returns the name of a communicator. Those of threads are numbered within their process.
fn name_of(identifier: &Identifier, is_of_threads: bool) -> String {
    if is_of_threads {
        return format!("{}-{}", std::process::id(), identifier.id);
    }
    format!("{:016x}", identifier.id)
}

/// Writes the trace of a communicator that closes. A failed one has written it.
pub(super) fn end(comm: &mut Communicator) {
    if comm.failed.is_none() {
        write(&mut comm.peers, None);
    }
}

/// Writes the trace of a rank, if it has one.
#[cold]
pub(super) fn write(peers: &mut Peers, error: Option<&Error>) {
    let control = Arc::clone(&peers.control);
    let Some(trace) = control.trace() else { return };
    if let Some(connection) = &mut peers.connection {
        trace.sample_clock(connection);
    }
    trace.write(error.map(ToString::to_string));
}

/// Records that the calls in progress have failed.
#[cold]
#[inline(never)]
pub(super) fn calls_failed(peers: &Peers) {
    if let Some(trace) = peers.control.trace() {
        trace.tape().calls_failed();
    }
}
