//! The receive that each send meets.

use super::FastMap;
use crate::schedule::StepId;
use crate::schedule::{Direction, Schedule};
use topology::Rank;

/// The pairs of sends and receives: the k-th send meets the k-th receive of the same (source, destination,
/// lane).
#[derive(Debug)]
pub(crate) struct Matching {
    /// `offsets[r]` is the number of the first step of rank `r` when all steps of all ranks are numbered in a
    /// row.
    offsets: Vec<u32>,
    /// All steps, by that number.
    ids: Vec<StepId>,
    /// The number of the other end of each step, by number; `NONE` for local steps.
    partner: Vec<u32>,
    /// The number of the step before each in its FIFO; `NONE` for the first ones and local steps.
    before: Vec<u32>,
}

/// The first thing that does not match.
#[derive(Debug)]
pub(crate) enum Mismatch {
    /// A step without a partner.
    Alone(StepId),
    /// A send and a receive with different lengths for some element count.
    Unequal {
        /// The send.
        send: StepId,
        /// The receive.
        recv: StepId,
    },
}

/// Placeholder for no step.
const NONE: u32 = u32::MAX;

/// The messages from one rank to another on one lane.
struct Stream {
    /// The first send that has not met its receive yet.
    first: u32,
    /// The newest send, and the newest receive.
    send: u32,
    recv: u32,
}

impl Matching {
    /// Pairs the sends and receives of a schedule whose peers are in range.
    pub(crate) fn new(schedule: &Schedule) -> Result<Matching, Mismatch> {
        let mut matching = Matching::numbered(schedule);
        let total = matching.total();
        let mut streams: FastMap<(u32, Rank, u8), Stream> = FastMap::default();
        // The send behind each one in its FIFO.
        let mut next = vec![NONE; total];
        for (number, (id, step)) in (0..).zip(schedule.steps()) {
            let Some((peer, Direction::Out)) = step.action.message() else { continue };
            let new = Stream { first: number, send: NONE, recv: NONE };
            let stream = streams.entry((id.rank, peer, step.lane)).or_insert(new);
            let before = std::mem::replace(&mut stream.send, number);
            if before != NONE {
                next[before as usize] = number;
            }
            matching.before[number as usize] = before;
        }
        for (number, (id, step)) in (0..).zip(schedule.steps()) {
            let Some((peer, Direction::In)) = step.action.message() else { continue };
            let stream = streams.get_mut(&(peer.0, Rank(id.rank), step.lane));
            let stream = stream.filter(|stream| stream.first != NONE).ok_or(Mismatch::Alone(id))?;
            matching.before[number as usize] = std::mem::replace(&mut stream.recv, number);
            let send = stream.first;
            stream.first = next[send as usize];
            matching.pair(schedule, matching.ids[send as usize], id)?;
        }
        let mut steps = schedule.steps().zip(&matching.partner);
        match steps.find(|((_, step), partner)| step.action.message().is_some() && **partner == NONE) {
            Some(((id, _), _)) => Err(Mismatch::Alone(id)),
            None => Ok(matching),
        }
    }

    /// Numbers all steps, and pairs none.
    fn numbered(schedule: &Schedule) -> Matching {
        let mut offsets = Vec::with_capacity(schedule.programs.len() + 1);
        let mut total = 0;
        for program in &schedule.programs {
            offsets.push(total);
            total += program.steps.len() as u32;
        }
        offsets.push(total);
        let mut ids = Vec::with_capacity(total as usize);
        ids.extend(schedule.steps().map(|(id, _)| id));
        let none = vec![NONE; total as usize];
        Matching { offsets, ids, partner: none.clone(), before: none }
    }

    fn pair(&mut self, schedule: &Schedule, send: StepId, recv: StepId) -> Result<(), Mismatch> {
        let shape = |id: StepId| {
            let payload = id.of(schedule).action.payload();
            payload.map(|range| (range.first % schedule.chunks, range.len, range.is_packed()))
        };
        if shape(send) != shape(recv) {
            return Err(Mismatch::Unequal { send, recv });
        }
        let (s, r) = (self.number(send), self.number(recv));
        self.partner[s] = r as u32;
        self.partner[r] = s as u32;
        Ok(())
    }

    /// Returns the number of a step when all steps of all ranks are numbered in a row.
    pub(crate) fn number(&self, id: StepId) -> usize {
        (self.offsets[id.rank as usize] + id.step) as usize
    }

    /// Returns the number of steps of all ranks.
    pub(crate) fn total(&self) -> usize {
        self.partner.len()
    }

    /// Returns all steps, by number.
    pub(crate) fn ids(&self) -> &[StepId] {
        &self.ids
    }

    /// Returns the step that a message step meets.
    pub(crate) fn partner(&self, id: StepId) -> Option<StepId> {
        self.twin(self.number(id) as u32).map(|partner| self.ids[partner as usize])
    }

    /// Returns the number of the step that a message step meets, by number.
    pub(crate) fn twin(&self, number: u32) -> Option<u32> {
        Some(self.partner[number as usize]).filter(|partner| *partner != NONE)
    }

    /// Returns the predecessor of a step in its FIFO, by number; `None` for the first one and for local
    /// steps.
    pub(crate) fn before(&self, number: u32) -> Option<u32> {
        Some(self.before[number as usize]).filter(|before| *before != NONE)
    }
}
