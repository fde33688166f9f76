//! Marks of sends that may follow a receive: they pass each byte on as soon as it is there.
//!
//! A rank of a ring, a chain or a tree sends on the data that it has received, alone or combined with its
//! own. When a send's source is exactly the destination of one receive, it need not wait for that receive to
//! be complete: byte `k` may leave once byte `k` has been combined. In effect the two steps become one (in
//! MSCCL++ and NCCL they are one instruction, `recvReduceSend`), and a message crosses a rank in the time of
//! a piece and not of itself.
//!
//! A mark removes no dependency. `after` still names the receive, so all that is proved of a plan is proved
//! of the plan without marks, where a send begins when its receive is complete. The proof for the plan with
//! marks: let a send follow `r`, read no byte before `r` has written it, not begin before `r` has written
//! one, and not complete before `r` does.
//!
//! * *Reads.* `r` writes every byte of the source, once. Later writers come after the send; earlier writers
//!   were complete before `r` began, and no other step is in between. So a byte that `r` has written stays,
//!   and the send reads the same bytes as without the mark.
//! * *Order.* Let `a` come before `b` in the plan without marks, by `after` or by their FIFO, and take the
//!   path from one to the other. It enters the send by another step of `after`, which is complete as before;
//!   by the send before it in the FIFO, all of which has been handed on; or by `r`. When the send begins, `r`
//!   has begun, so everything before `r` is complete. Where the path leaves the send, to a step after it or
//!   behind it in its FIFO, the whole send has been handed on, and so `r` is complete, too. Only the order of
//!   `r` and the send themselves is given up. There is no new race.
//! * *Matching.* The messages, their ranks, lanes and order are as before. Ranks need not even agree on
//!   marks.
//! * *Progress.* Take any state of a run, and an order in which all steps can run without marks and with zero
//!   credits (the verifier has found one). Everything before the first incomplete step of that order is
//!   complete, so that step and its partner can go on: if it follows, its whole source is there. A send that
//!   has begun delays those behind it in its FIFO, which had to wait for it anyway. So a plan that cannot
//!   hang without marks cannot hang with them.
//!
//! The verifier checks the premises for every mark (`verify/follows.rs`). A message without bytes never
//! leaves early, since its receive has written nothing before it is complete; barriers have only such
//! messages, so they have no marks.

use crate::Collective;
use crate::analysis::Touched;
use crate::schedule::Memory;
use crate::schedule::{Action, RankProgram, Schedule};
use topology::Rank;

/// Whether the collective's messages have bytes to pass on early.
pub(crate) fn is_worth_it(collective: Collective) -> bool {
    collective != Collective::Barrier
}

/// Returns the step of `after` that the next step may follow: the receive whose data it sends, if no step has
/// written there since.
pub(crate) fn followed<'a>(
    memory: &Memory,
    touched: &Touched,
    action: &Action,
    after: &[u32],
    earlier: impl FnOnce(u32) -> &'a Action,
) -> Option<u32> {
    let Action::Send { src, .. } = *action else { return None };
    let span = memory.span(src);
    let writer = touched.writer(span.start).filter(|writer| after.contains(writer))?;
    let is_whole = earlier(writer).received().is_some_and(|dst| memory.span(dst) == span);
    (is_whole && span.into_iter().all(|cell| touched.writer(cell) == Some(writer))).then_some(writer)
}

/// Marks every send that may follow a receive. Planners' schedules are marked already; this is for schedules
/// made by hand, which must be well-formed.
#[must_use]
pub fn fuse(mut schedule: Schedule) -> Schedule {
    if !is_worth_it(schedule.collective) {
        return unfuse(schedule);
    }
    let ranks = schedule.ranks();
    let mut programs = std::mem::take(&mut schedule.programs);
    let mut touched = Touched::default();
    for (rank, program) in (0..).zip(&mut programs) {
        let memory = Memory::new(&schedule, ranks, Rank(rank));
        touched.start(&memory);
        mark(&memory, &mut touched, program);
    }
    Schedule { programs, ..schedule }
}

fn mark(memory: &Memory, touched: &mut Touched, program: &mut RankProgram) {
    for at in 0..program.steps.len() {
        let (earlier, rest) = program.steps.split_at_mut(at);
        let step = &mut rest[0];
        let earlier = |before: u32| &earlier[before as usize].action;
        step.follows = followed(memory, touched, &step.action, &step.after, earlier);
        touched.touch(memory, &step.action, at as u32);
    }
}

/// The same plan without marks: every send waits until all that it sends is there.
#[must_use]
pub fn unfuse(mut schedule: Schedule) -> Schedule {
    for step in schedule.programs.iter_mut().flat_map(|program| &mut program.steps) {
        step.follows = None;
    }
    schedule
}
