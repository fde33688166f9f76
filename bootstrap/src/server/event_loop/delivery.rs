//! Delivery of what the job has queued: messages, closed connections, and looks at processes.

use super::{
    super::{
        super::{frame_stream::Payload, snapshot::ProcessState},
        job::Outgoing,
    },
    EventLoop,
};
use std::time::Instant;
use transport::host::peer_process;

impl EventLoop {
    /// Sends the job's queued messages.
    pub(super) fn deliver(&mut self, now: Instant) {
        loop {
            let queued = self.job.take_outgoing();
            if queued.is_empty() {
                break;
            }
            queued.into_iter().for_each(|outgoing| self.carry_out(outgoing, now));
        }
        self.flush_all(now);
    }

    /// Queues a message of the job at its connection, or carries out another wish of the job.
    fn carry_out(&mut self, outgoing: Outgoing, now: Instant) {
        let token = match outgoing {
            Outgoing::Inquirer(token, _) => Some(token),
            Outgoing::LookAt(rank) => {
                let state = self.process_state(rank);
                return self.job.report_process_state(rank, state);
            }
            Outgoing::Payload(rank, _) | Outgoing::End(rank) => self.tokens.get(&rank).copied(),
        };
        let Some(token) = token else { return };
        let Some(mut connection) = self.connections.remove(&token) else { return };
        match outgoing {
            Outgoing::Payload(_, payload) => connection.frames.send(payload),
            Outgoing::Inquirer(_, bytes) => connection.frames.send(Payload::Bytes(bytes)),
            Outgoing::End(rank) => {
                self.start_closing(token, &mut connection, now);
                self.tokens.remove(&rank);
            }
            Outgoing::LookAt(_) => {}
        }
        self.unflushed.insert(token);
        self.connections.insert(token, connection);
    }

    /// Returns the state of a rank's process, if that runs on this host.
    fn process_state(&mut self, rank: u32) -> ProcessState {
        let connection = self.tokens.get(&rank).and_then(|token| self.connections.get_mut(token));
        let Some(connection) = connection else { return ProcessState::Unknown };
        if connection.frames.socket().is_tcp() {
            return ProcessState::Unknown;
        }
        peer_process(&connection.frames).map_or(ProcessState::Unknown, ProcessState::of)
    }

    fn flush_all(&mut self, now: Instant) {
        for token in std::mem::take(&mut self.unflushed) {
            let Some(connection) = self.connections.get_mut(&token) else { continue };
            if let Err(why) = connection.flush(token, self.poll.registry())
                && let Some(connection) = self.connections.remove(&token)
            {
                self.close(token, connection, Some(&why), now);
            }
        }
    }
}
