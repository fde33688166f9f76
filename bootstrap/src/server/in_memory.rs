//! The rendezvous without its event loop, for tests: connections and the job, step by step, with the caller's
//! clock.

use super::{
    super::frame_stream::{FrameStream, ReadProgress},
    connection::{InboundConnection, Message, Stage},
    job::{Job, Outgoing},
};
use std::time::Instant;

/// A rendezvous that advances on request.
pub(crate) struct InMemoryServer {
    job: Job,
    connections: Vec<Option<InboundConnection>>,
    start: Instant,
}

impl InMemoryServer {
    pub(crate) fn new(ranks: u32, start: Instant) -> InMemoryServer {
        InMemoryServer { job: Job::new(ranks), connections: Vec::new(), start }
    }

    /// Adds a connection that counts as authenticated.
    pub(crate) fn add_connection(&mut self, frames: FrameStream) {
        let connection = InboundConnection::new(frames, Stage::AwaitingHello, self.start, None);
        self.connections.push(Some(connection));
    }

    /// Reads all connections, advances the job, and sends its messages.
    pub(crate) fn step(&mut self, now: Instant) {
        for slot in &mut self.connections {
            let Some(mut connection) = slot.take() else { continue };
            let filled = connection.fill();
            let handled = handle(&mut self.job, &mut connection, now);
            match (handled, filled) {
                (true, Ok(ReadProgress::Drained | ReadProgress::More)) => *slot = Some(connection),
                _ => {
                    if let Some(rank) = connection.rank() {
                        self.job.connection_lost(rank, "broke", true, now);
                    }
                }
            }
        }
        self.job.tick(now);
        self.job.send_board_updates();
        let status = self.job.status();
        assert!(status.gone <= status.joined && status.died <= status.joined, "{status:?}");
        for outgoing in self.job.take_outgoing() {
            let (Outgoing::Payload(rank, _) | Outgoing::End(rank)) = outgoing else { continue };
            let mut connections = self.connections.iter_mut().flatten();
            let Some(connection) = connections.find(|connection| connection.rank() == Some(rank)) else {
                continue;
            };
            match outgoing {
                Outgoing::Payload(_, payload) => connection.frames.send(payload),
                _ => connection.stage = Stage::Closing,
            }
            let _ = connection.frames.flush();
        }
    }

    /// Asserts that every rank that joined has left or was refused.
    pub(crate) fn assert_all_finished(&self) {
        let status = self.job.status();
        assert_eq!(self.job.next_deadline(), None, "{status:?}");
        assert!(status.joined == 0 || status.is_over, "{status:?}");
    }
}

/// Handles the messages of a connection. Returns false if it has to be closed.
fn handle(job: &mut Job, connection: &mut InboundConnection, now: Instant) -> bool {
    loop {
        match connection.next() {
            Err(_) => return false,
            Ok(None) => return true,
            Ok(Some(Message::Hello(hello, arena))) => match job.admit(*hello, arena, now) {
                Ok(rank) => connection.stage = Stage::Rank(rank),
                Err(_) => connection.stage = Stage::Closing,
            },
            Ok(Some(Message::OtherVersion(why))) => {
                job.refuse_unless_complete(&why);
                connection.stage = Stage::Closing;
            }
            Ok(Some(Message::Question(_))) => return false,
            Ok(Some(Message::FromRank(rank, message, bytes))) => {
                if job.handle(rank, message, bytes, now).is_err() {
                    return false;
                }
            }
        }
    }
}
