//! Marks sends that may follow a receive: they send each byte on as soon as it is there, and not when all are.
//!
//! A rank of a ring, a chain or a tree sends on what it has received, alone or combined with what is its own. When a
//! send's source is exactly what one receive has written, it need not wait for that receive to be complete: byte `k` may
//! leave once byte `k` has been combined. The two steps become one in effect (in MSCCL++ and NCCL they are one instruction,
//! `recvReduceSend`), and a message goes through a rank in the time of a piece and not of itself.
//!
//! A mark takes nothing away. `after` still names the receive, so all that is proved of a plan is proved of the plan without
//! marks, where a send begins when its receive is complete. Why it then holds for the plan with marks: say that a send
//! follows `r`, reads no byte before `r` has written it, does not begin before `r` has written one, and is not complete
//! before `r` is.
//!
//! * *What is read.* `r` writes every byte of the source, once. Whoever writes there later comes after the send; whoever
//!   wrote there earlier was complete before `r` began, and nobody is in between. So a byte that `r` has written stays, and
//!   the send reads the same bytes as without the mark.
//! * *What is ordered.* Let `a` come before `b` in the plan without marks, by `after` or by their FIFO, and follow the way
//!   from one to the other. Where it enters the send, it comes by another step of `after`, which is complete as before; by
//!   the send before it in the FIFO, all of which has been handed on; or by `r`. When the send begins, `r` has begun, so all
//!   that came before `r` is complete. Where the way goes on from the send, to what comes after it or behind it in its FIFO,
//!   all of the send has been handed on, and so `r` is complete, too. The order of `r` and the send themselves is all that is
//!   given up. There is no new race.
//! * *What meets.* Who sends what to whom, on which lane and in which order, is as before. Ranks need not even agree on marks.
//! * *What waits.* Take any state of a run, and an order in which all steps can run without marks and with zero credits
//!   (the verifier has found one). Everything before the first step of it that is not complete is complete, so that step and
//!   its partner can go on: if it follows, all of its source is there. A send that has begun holds up those behind it in its
//!   FIFO, which had to wait for it anyway. So what cannot hang without marks cannot hang with them.
//!
//! The verifier checks the premises for every mark (`verify/follows.rs`). A message without bytes never leaves early, since
//! its receive has written nothing before it is complete; in barriers there are no other ones, so they have no marks.

use crate::Collective;
use crate::analysis::Touched;
use crate::schedule::Memory;
use crate::schedule::{Action, RankProgram, Schedule};
use topology::Rank;

/// Have messages bytes that could be sent on?
pub(crate) fn is_worth_it(collective: Collective) -> bool {
    collective != Collective::Barrier
}

/// The step of those `after` which it comes that the next step may follow: it sends exactly what that one has received, and
/// nobody has written there since.
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

/// Marks every send that may follow a receive. Planners have it done to their plans; this is for plans made by hand, which
/// must have the shape of a schedule.
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
