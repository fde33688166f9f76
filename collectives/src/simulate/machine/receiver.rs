//! The receiver's half of a message: grants, and taking pieces.

use super::{Block, Machine, Position, next, part};
use crate::simulate::{
    StartReason,
    costs::at_rate,
    event::Event,
    program::{Kind, NONE, Step},
};

impl Machine<'_> {
    /// Grants the first receives of all streams of a rank that has entered the call.
    pub(super) fn grant_all(&mut self, rank: u32) {
        for step in self.program.bases[rank as usize]..self.program.bases[rank as usize + 1] {
            let Step { kind, stream, .. } = self.step(step);
            let first = matches!(kind, Kind::Recv | Kind::RecvReduce)
                && self.program.recvs[self.program.streams[stream as usize].first as usize] == step;
            if first {
                self.grant(stream);
            }
        }
    }

    /// Grants the sender the receives whose memory may be written, in order and ahead of time.
    pub(super) fn grant(&mut self, stream: u32) {
        if !self.costs.granted {
            return;
        }
        let end = self.program.streams[stream as usize].end;
        loop {
            let progress = &self.streams[stream as usize];
            let (granted, ahead) = (progress.granted, self.costs.ahead.max(1));
            if granted == end || granted - progress.takes.message >= ahead {
                return;
            }
            let number = self.program.recvs[granted as usize];
            // Data to be reduced waits in the transport's own memory.
            let lands = self.step(number).kind == Kind::Recv;
            if lands && (self.waits_for[number as usize] != 0 || self.timings[number as usize].ready.is_nan())
            {
                return;
            }
            let known = self.now + self.control_latency(stream) + self.costs.grant_us * 1e-6;
            self.granted_at[granted as usize] = known;
            let progress = &mut self.streams[stream as usize];
            progress.granted += 1;
            if progress.block == Block::Grant && progress.begins.message == granted {
                self.events.at(known, Event::Resume { stream });
            }
        }
    }

    /// Returns the time that a grant or credit takes from the receiver of a stream to its sender.
    fn control_latency(&self, stream: u32) -> f64 {
        let back = &self.program.back[stream as usize];
        let waits = if self.costs.words_wait { self.network.backlog(back, self.now) } else { 0.0 };
        back.latency + waits
    }

    /// Takes the arrived pieces of a stream.
    pub(super) fn take(&mut self, stream: u32, mut reason: StartReason) {
        loop {
            let progress = &self.streams[stream as usize];
            let Position { message, piece } = progress.takes;
            if progress.is_taking || progress.here == 0 {
                return;
            }
            let number = self.program.recvs[message as usize];
            if self.waits_for[number as usize] != 0 || self.timings[number as usize].ready.is_nan() {
                return;
            }
            let step = self.step(number);
            let protocol = self.protocol(step);
            self.note_take(stream, number, reason);
            let bytes = part(step.bytes, protocol.pieces, piece);
            let once = if piece == 0 { self.costs.recv_us * 1e-6 } else { 0.0 };
            let combining = match step.kind {
                Kind::RecvReduce => at_rate(bytes, self.costs.reduce_gbs),
                _ => 0.0,
            };
            // Data to be reduced is read in place.
            let copied = protocol.copied && step.kind != Kind::RecvReduce;
            let seconds = once + combining + self.costs.moving(bytes, self.costs.recv_gbs, copied);
            let end = if seconds > 0.0 { self.occupy(number, seconds, piece == 0) } else { self.now };
            let progress = &mut self.streams[stream as usize];
            (progress.is_taking, progress.here) = (true, progress.here - 1);
            if end > self.now {
                self.events.at(end, Event::Taken { stream });
                return;
            }
            self.streams[stream as usize].is_taking = false;
            self.finish_take(stream);
            reason = StartReason::Rank;
        }
    }

    /// Records the cause of the time at which a piece is processed. The last piece's cause is the message's,
    /// unless the piece followed at once.
    fn note_take(&mut self, stream: u32, number: u32, reason: StartReason) {
        let Position { message, piece } = self.streams[stream as usize].takes;
        let timing = &mut self.timings[number as usize];
        if piece == 0 {
            timing.begin = self.now;
        }
        match reason {
            StartReason::Message => {
                (timing.reason, timing.cause) = (StartReason::Message, self.program.sends[message as usize]);
            }
            StartReason::Rank if piece == 0 => {
                let before =
                    message.checked_sub(1).filter(|at| *at >= self.program.streams[stream as usize].first);
                let before = before.map_or(NONE, |before| self.program.recvs[before as usize]);
                (timing.reason, timing.cause) = (StartReason::Fifo, before);
            }
            _ => {}
        }
    }

    /// Handles a piece that the receiver's processor has finished.
    pub(super) fn finish_take(&mut self, stream: u32) {
        let known = self.now + self.control_latency(stream);
        let progress = &mut self.streams[stream as usize];
        let Position { message, piece } = progress.takes;
        let number = self.program.recvs[message as usize];
        let step = self.program.steps[number as usize];
        let pieces = self.costs.protocol(step.bytes).pieces;
        progress.taken_in_all += 1;
        if let Some(credits) = self.costs.most_credits() {
            progress.taken_at.push_back(known);
            if progress.taken_at.len() > credits as usize {
                progress.taken_at.pop_front();
            }
        }
        let is_last = piece + 1 == pieces;
        progress.takes = next(progress.takes, is_last);
        if progress.block == Block::Credit {
            self.events.at(known, Event::Resume { stream });
        }
        if is_last {
            self.complete(number);
            self.grant(stream);
        } else {
            self.resume_followers(number);
        }
    }
}
