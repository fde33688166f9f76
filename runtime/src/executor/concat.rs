//! Concatenation of several calls into one program.
//!
//! Steps of different calls do not wait for each other: their memory is distinct. But messages of two ranks
//! on one lane travel in the order of the calls, on both sides, since a stream of the whole is the
//! concatenation of the streams of its parts. If each part can run to its end by itself, so can the whole:
//! the first call's messages never wait for the second one's.

use super::program::{Program, Stream, followed};
use topology::Rank;

impl Program {
    /// Returns the program of calls that are issued together, in order.
    pub(crate) fn concat(parts: &[&Program]) -> Program {
        let mut whole = Concatenation::default();
        for (call, part) in (0u16..).zip(parts) {
            whole.append(call, part);
        }
        let (streams, order) = whole.streams();
        let followed = followed(std::mem::take(&mut whole.follows), &streams, &order);
        Program {
            ops: whole.ops.into(),
            dependents: whole.dependents.into(),
            waits_for: whole.waits_for.into(),
            streams: streams.into(),
            order: order.into(),
            followed,
            first_local: whole.first_local.into(),
            straight: None,
            exchanges: parts.iter().any(|part| part.exchanges),
            is_awaited: false,
            segments: 1,
            chunks: 1,
            scratch_blocks: 0,
            packing: None,
            id: 0,
            algorithm: "group".into(),
            parts: whole.parts.into(),
            unheard: whole.unheard.into(),
        }
    }
}

#[derive(Default)]
struct Concatenation {
    ops: Vec<super::program::Op>,
    dependents: Vec<u32>,
    waits_for: Vec<u32>,
    /// Per step: the receive that it follows.
    follows: Vec<Option<u32>>,
    first_local: Vec<u32>,
    parts: Vec<(u32, String)>,
    unheard: Vec<Rank>,
    /// Streams of the parts (direction, link and peer), and their steps.
    pieces: Vec<(Stream, Vec<u32>)>,
}

impl Concatenation {
    fn append(&mut self, call: u16, part: &Program) {
        let (first, dependents) = (self.ops.len() as u32, self.dependents.len() as u32);
        self.parts.push((first, part.algorithm.clone()));
        self.ops.extend(part.ops.iter().map(|op| super::program::Op {
            call,
            dependents: (op.dependents.0 + dependents, op.dependents.1 + dependents),
            ..*op
        }));
        self.dependents.extend(part.dependents.iter().map(|step| step + first));
        self.waits_for.extend(&part.waits_for);
        let follows = (0..part.ops.len()).map(|step| part.followed.get(step).copied().flatten());
        self.follows.extend(follows.map(|one| one.map(|one| part.order[one.position as usize] + first)));
        self.first_local.extend(part.first_local.iter().map(|step| step + first));
        self.unheard.extend(&part.unheard);
        for stream in &part.streams {
            let steps = &part.order[stream.first as usize..stream.end as usize];
            self.pieces.push((*stream, steps.iter().map(|step| step + first).collect()));
        }
    }

    /// Returns the streams of the whole, sends first so that peers can start.
    fn streams(&mut self) -> (Vec<Stream>, Vec<u32>) {
        // A stable sort, so that the pieces of one stream stay in the order of the calls.
        self.pieces.sort_by_key(|(stream, _)| (!stream.sends, stream.link));
        let mut streams: Vec<Stream> = Vec::new();
        let mut order = Vec::new();
        for (piece, steps) in &self.pieces {
            let first = order.len() as u32;
            order.extend(steps);
            let end = order.len() as u32;
            match streams.last_mut() {
                Some(last) if (last.sends, last.link) == (piece.sends, piece.link) => last.end = end,
                _ => streams.push(Stream { first, end, ..*piece }),
            }
        }
        (streams, order)
    }
}
