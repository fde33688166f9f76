//! The sender's half of a message: its turn, its credit, its pieces on the wire, and its completion.
//!
//! The receiver's half sends events that announce grants and taken pieces.

use super::{Block, Machine, Position, Progress, next, part};
use crate::simulate::{StartReason, event::Event, program::NONE};

impl Machine<'_> {
    /// Completes the first incomplete send and the copied sends behind it, since sends complete in order.
    pub(super) fn release(&mut self, stream: u32) {
        loop {
            let progress = &mut self.streams[stream as usize];
            let step = self.program.sends[progress.released as usize];
            progress.released += 1;
            self.complete(step);
            let Progress { released, begins, .. } = self.streams[stream as usize];
            if released >= begins.message
                || !self.protocol(self.step(self.program.sends[released as usize])).eager
            {
                return;
            }
        }
    }

    /// Begins the pieces of a stream that may be sent.
    pub(super) fn send(&mut self, stream: u32) {
        loop {
            let progress = &self.streams[stream as usize];
            let Position { message, piece } = progress.begins;
            if progress.is_beginning || message == self.program.streams[stream as usize].end {
                return;
            }
            let number = self.program.sends[message as usize];
            if !self.may_send(number, piece) || !self.may_begin(stream, number) {
                return;
            }
            let step = self.step(number);
            let protocol = self.protocol(step);
            if piece == 0 {
                self.note_begin(stream, number);
            }
            let once = if piece == 0 { self.costs.send_us * 1e-6 } else { 0.0 };
            let bytes = part(step.bytes, protocol.pieces, piece);
            let seconds = once + self.costs.moving(bytes, self.costs.send_gbs, protocol.copied);
            let end = if seconds > 0.0 { self.occupy(number, seconds, piece == 0) } else { self.now };
            let progress = &mut self.streams[stream as usize];
            (progress.is_beginning, progress.block) = (true, Block::None);
            if end > self.now {
                self.events.at(end, Event::Sent { stream });
                return;
            }
            self.streams[stream as usize].is_beginning = false;
            self.finish_begin(stream);
        }
    }

    /// Whether the next piece of a stream has a grant and a credit. If not, the sender is resumed when it
    /// has.
    fn may_begin(&mut self, stream: u32, step: u32) -> bool {
        let progress = &self.streams[stream as usize];
        let protocol = self.protocol(self.step(step));
        let known = if protocol.granted { self.granted_at[progress.begins.message as usize] } else { 0.0 };
        if known > self.now {
            return self.wait_for(stream, Block::Grant, known);
        }
        let under_way = progress.begun - progress.taken_in_all;
        // Fragments before a piece may be more than the credits of pieces.
        if under_way >= protocol.credits {
            return self.wait_for(stream, Block::Credit, f64::INFINITY);
        }
        // The credit of the piece that makes room has to come back; the oldest piece in flight counts.
        let spare = (protocol.credits - under_way) as usize;
        let latest = progress.taken_at.len().checked_sub(spare).and_then(|at| progress.taken_at.get(at));
        let known = latest.copied().unwrap_or(0.0);
        known <= self.now || self.wait_for(stream, Block::Credit, known)
    }

    /// Resumes the sender at a time, where that is known. Returns `false`.
    fn wait_for(&mut self, stream: u32, block: Block, time: f64) -> bool {
        let progress = &mut self.streams[stream as usize];
        if time.is_finite() {
            self.events.at(time, Event::Resume { stream });
        }
        progress.block = block;
        false
    }

    /// Records the reason why a send began no earlier.
    fn note_begin(&mut self, stream: u32, number: u32) {
        let progress = &self.streams[stream as usize];
        let message = progress.begins.message;
        let first = self.program.streams[stream as usize].first;
        let timing = &mut self.timings[number as usize];
        timing.begin = self.now;
        if self.now <= timing.ready {
            return;
        }
        match progress.block {
            // The cause of the missing grant: a step before the receive, or the receives ahead of it.
            Block::Grant => {
                let recv = self.program.recvs[message as usize];
                let ahead = message.checked_sub(self.costs.ahead.max(1)).filter(|at| *at >= first);
                let kept = self.timings[recv as usize].cause;
                let cause = if kept == NONE {
                    ahead.map_or(NONE, |at| self.program.recvs[at as usize])
                } else {
                    kept
                };
                let timing = &mut self.timings[number as usize];
                (timing.reason, timing.cause) = (StartReason::Grant, cause);
            }
            Block::Credit => {
                let taken = progress.takes.message.min(message.saturating_sub(1)).max(first);
                (timing.reason, timing.cause) = (StartReason::Credit, self.program.recvs[taken as usize]);
            }
            Block::None if message > first => {
                (timing.reason, timing.cause) = (StartReason::Fifo, self.program.sends[message as usize - 1]);
            }
            Block::None => {}
        }
    }

    /// Handles a piece that the sender's processor has begun.
    pub(super) fn finish_begin(&mut self, stream: u32) {
        let progress = &mut self.streams[stream as usize];
        let Position { message, piece } = progress.begins;
        let number = self.program.sends[message as usize];
        let step = self.program.steps[number as usize];
        let protocol = self.costs.protocol(step.bytes);
        progress.begun += 1;
        progress.ready += 1;
        let is_last = piece + 1 == protocol.pieces;
        progress.begins = next(progress.begins, is_last);
        if self.network.is_under_way(stream) {
            self.network.follow(stream, self.costs.on_the_wire(part(step.bytes, protocol.pieces, piece)));
        } else {
            self.leave(stream);
        }
        if is_last && protocol.eager && self.streams[stream as usize].released == message {
            self.release(stream);
        }
    }

    /// Returns the bytes on the wire of the piece that leaves next, and whether it is its message's last.
    fn leaving(&self, stream: u32) -> (u64, bool) {
        let Position { message, piece } = self.streams[stream as usize].leaves;
        let step = self.step(self.program.sends[message as usize]);
        let pieces = self.protocol(step).pieces;
        (self.costs.on_the_wire(part(step.bytes, pieces, piece)), piece + 1 == pieces)
    }

    fn leave(&mut self, stream: u32) {
        let (bytes, _) = self.leaving(stream);
        let progress = &mut self.streams[stream as usize];
        if progress.leaves.piece == 0 {
            progress.left_since = self.now;
        }
        self.network.begin(stream, bytes, self.now);
    }

    /// Handles a piece that has left.
    pub(super) fn left(&mut self, stream: u32) {
        let (bytes, is_last) = self.leaving(stream);
        let latency = self.network.latency(stream);
        self.events.at(self.now + latency, Event::Arrived { stream });
        let progress = &mut self.streams[stream as usize];
        let message = progress.leaves.message;
        let number = self.program.sends[message as usize];
        if is_last {
            self.timings[number as usize].wire = (self.now - progress.left_since) as f32;
            if !self.costs.protocol(self.program.steps[number as usize].bytes).eager {
                let known = self.now
                    + latency
                    + self.program.back[stream as usize].latency * self.costs.confirmations;
                self.events.at(known, Event::Released { stream });
            }
        }
        let progress = &mut self.streams[stream as usize];
        progress.ready -= 1;
        progress.leaves = next(progress.leaves, is_last);
        if progress.ready == 0 {
            self.network.end(stream, bytes, self.now);
            return;
        }
        if is_last {
            progress.left_since = self.now;
        }
        let (following, _) = self.leaving(stream);
        self.network.continue_with(stream, (bytes, following), self.now, &mut self.events);
    }
}
