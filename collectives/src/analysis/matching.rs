//! Which send meets which receive.

use super::{FastMap, StepId};
use crate::schedule::{Action, Direction, Schedule};
use topology::Rank;

/// The pairs of sends and receives: the k-th send meets the k-th receive of the same (source, destination,
/// lane).
#[derive(Debug)]
pub(crate) struct Matching {
    /// `offsets[r]` is the number of the first step of rank `r` when all steps of all ranks are numbered in a
    /// row.
    offsets: Vec<u32>,
    /// The other end of each step, by that number; `NONE` for local steps.
    partner: Vec<StepId>,
}

/// The first thing that does not match.
#[derive(Debug)]
pub(crate) enum Mismatch {
    /// A step that nothing meets.
    Alone(StepId),
    /// A send and a receive whose lengths differ for some element count.
    Unequal {
        /// The send.
        send: StepId,
        /// The receive.
        recv: StepId,
    },
}

const NONE: StepId = StepId { rank: u32::MAX, step: u32::MAX };

impl Matching {
    /// Pairs the steps of a schedule whose peers are in range.
    pub(crate) fn new(schedule: &Schedule) -> Result<Matching, Mismatch> {
        let mut offsets = Vec::with_capacity(schedule.programs.len() + 1);
        let mut total = 0;
        for program in &schedule.programs {
            offsets.push(total);
            total += program.steps.len() as u32;
        }
        offsets.push(total);
        let mut matching = Matching { offsets, partner: vec![NONE; total as usize] };
        let mut sends: FastMap<(Rank, Rank, u8), Vec<StepId>> = FastMap::default();
        for (id, action, lane) in steps(schedule) {
            if let Some((peer, Direction::Out)) = action.message() {
                sends.entry((Rank(id.rank), peer, lane)).or_default().push(id);
            }
        }
        let mut taken: FastMap<(Rank, Rank, u8), usize> = FastMap::default();
        for (recv, action, lane) in steps(schedule) {
            let Some((peer, Direction::In)) = action.message() else { continue };
            let key = (peer, Rank(recv.rank), lane);
            let nth = taken.entry(key).or_default();
            let send = sends.get(&key).and_then(|list| list.get(*nth)).copied();
            *nth += 1;
            let send = send.ok_or(Mismatch::Alone(recv))?;
            matching.pair(schedule, send, recv)?;
        }
        match steps(schedule).find(|(id, action, _)| {
            action.message().is_some() && matching.partner[matching.number(*id)] == NONE
        }) {
            Some((id, ..)) => Err(Mismatch::Alone(id)),
            None => Ok(matching),
        }
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
        self.partner[s] = recv;
        self.partner[r] = send;
        Ok(())
    }

    /// The number of a step when all steps of all ranks are numbered in a row.
    pub(crate) fn number(&self, id: StepId) -> usize {
        (self.offsets[id.rank as usize] + id.step) as usize
    }

    /// The number of steps of all ranks.
    pub(crate) fn total(&self) -> usize {
        self.partner.len()
    }

    /// The step that a message step meets.
    pub(crate) fn partner(&self, id: StepId) -> Option<StepId> {
        Some(self.partner[self.number(id)]).filter(|partner| *partner != NONE)
    }
}

fn steps(schedule: &Schedule) -> impl Iterator<Item = (StepId, &Action, u8)> {
    schedule.programs.iter().enumerate().flat_map(|(rank, program)| {
        program
            .steps
            .iter()
            .enumerate()
            .map(move |(step, s)| (StepId { rank: rank as u32, step: step as u32 }, &s.action, s.lane))
    })
}
