//! Announcements: links hear of receives before their messages are polled, as far as their memory may be
//! written.
//!
//! Receives of a stream are announced in order. None is announced behind one that began unannounced.

use super::{Run, link, observer::Observer, waiting::Stop};
use crate::executor::program::OpKind;
use transport::TransportError;

impl<const ANNOUNCES: bool, const GROUPED: bool, O: Observer> Run<'_, '_, ANNOUNCES, GROUPED, O> {
    /// Announces everything that can be announced from the start. It precedes all sends: in a queue with a
    /// megabyte to send, an announcement would come after it, and the peer waits for both.
    pub(super) fn announce_all(&mut self) -> Result<(), Stop> {
        if !ANNOUNCES {
            return Ok(());
        }
        for (at, stream) in self.program.streams.iter().enumerate().filter(|(_, stream)| !stream.sends) {
            if stream.first < stream.end {
                self.announce(at, u32::MAX).map_err(|error| self.failed(at, error))?;
            }
        }
        Ok(())
    }

    /// Announces at most `most` messages beyond the announced ones, as far as their memory may be written.
    /// Receives that reduce need not wait for that.
    pub(super) fn announce(&mut self, at: usize, most: u32) -> Result<(), TransportError> {
        let stream = &self.program.streams[at];
        for _ in 0..most {
            let cursor = &self.workspace.cursors[at];
            // No receive is announced behind one that began unannounced.
            let begun =
                cursor.announced == cursor.next && cursor.recv.is_some_and(|recv| recv.received() > 0);
            if cursor.announced == stream.end || begun {
                break;
            }
            let step = self.program.order[cursor.announced as usize];
            let op = &self.program.ops[step as usize];
            // The data of a receive that reduces waits in memory of the link.
            let is_open = self.workspace.waits_for[step as usize] == 0 || op.kind == OpKind::RecvReduce;
            if !is_open || cursor.announced - cursor.next >= u32::from(op.ahead) {
                break;
            }
            let binding = self.binding(op);
            let dst = binding.target(&op.dst);
            let destination = (op.kind == OpKind::Recv && !dst.is_empty()).then_some(dst);
            // The link may have announced the present one itself since it was polled.
            let present = cursor.recv.filter(|_| cursor.announced == cursor.next);
            let mut state = present.unwrap_or_else(|| self.fresh(binding, dst.len()));
            if !link(self.links, stream).announce(&mut state, destination)? {
                break;
            }
            self.workspace.announced(at, state);
        }
        Ok(())
    }
}
