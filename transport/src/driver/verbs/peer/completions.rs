//! Completions of the requests that were posted for a peer.
//!
//! Invariant: a completion of an earlier life of a queue pair has no effect.

use super::Peer;
use crate::{
    TransportError,
    driver::verbs::{
        env::Env,
        queue::{Id, RequestKind},
        rail::PLACED,
        stream::Stream,
        wire::piece_of,
    },
    verbs::{Completion, WcOpcode, WcStatus, explain},
};
use std::time::Instant;

impl Peer {
    /// Takes in a completion whose identifier is `id`.
    #[inline]
    pub(in crate::driver::verbs) fn take_completion(
        &mut self,
        env: &mut Env<'_>,
        id: Id,
        completion: &Completion,
    ) -> Result<(), TransportError> {
        // The memory of its pieces may not be registered any more.
        if self.broken.is_some() {
            return Ok(());
        }
        let (index, several) = (usize::from(id.rail), self.rails.len() > 1);
        let Some(rail) = self.rails.get_mut(index).filter(|rail| rail.is_current(id.queue, id.life)) else {
            return Ok(());
        };
        let is_alive = rail.is_alive(id.queue);
        if completion.status != WcStatus::SUCCESS {
            if !is_alive {
                return Ok(());
            }
            let cause = explain(completion.status).0;
            return match id.queue {
                PLACED => self.begin_epoch(env, cause),
                _ => self.take_down(env, index, cause),
            };
        }
        match id.kind {
            RequestKind::Sent => {
                let streams = &mut self.streams;
                let Some(queue) = rail.queue_mut(id.queue) else { return Ok(()) };
                let left = queue.complete(id.value, |number, piece| {
                    if let Some(stream) = streams.find(number) {
                        streams[stream].granted.send.arrived(piece, index);
                    }
                });
                if several {
                    rail.bandwidth.left(left, Instant::now());
                }
                Ok(())
            }
            RequestKind::Slot if completion.opcode == WcOpcode::RECV_RDMA_WITH_IMM => {
                self.put_back(env, index, id.queue, id.value)?;
                // A piece that came before its rail failed has been granted again. Its sender reports that it
                // has arrived, or sends it again.
                if !self.rails[index].is_up() {
                    return Ok(());
                }
                self.rails[index].pulse.beat();
                let near = |stream: usize| self.streams.get(stream).map(Stream::done);
                let Some(piece) = piece_of(completion.imm.unwrap_or_default(), near) else {
                    // Its stream is closed.
                    return Ok(());
                };
                self.written(env, index, piece)
            }
            RequestKind::Slot => self.receive(env, (index, id.queue, id.value), completion.bytes as usize),
            RequestKind::Piece | RequestKind::Trailer if !is_alive => Ok(()),
            RequestKind::Piece => self.piece_came(env, (id.value, completion.bytes)),
            RequestKind::Trailer => self.trailer_came(env, index, (id.value, completion.bytes)),
        }
    }
}
