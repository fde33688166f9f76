//! Checks the marks of sends that follow a receive.
//!
//! These are the premises of [`crate::pass::fuse()`]: the step is a send; it comes after the receive that it
//! follows; that receive writes exactly the memory that it sends; and no step has written there since. The
//! rest follows from the plan without marks.

use super::fault::{Fault, LocatedStep};
use crate::analysis::Touched;
use crate::schedule::Memory;
use crate::schedule::{Action, RankProgram, Step};

/// Checks the mark of a step. `touched` holds the accesses of earlier steps. The step is well-formed, and
/// races with none of them.
pub(super) fn check(
    memory: &Memory,
    touched: &Touched,
    program: &RankProgram,
    step: &Step,
    at: impl FnOnce() -> LocatedStep,
) -> Result<(), Fault> {
    let Some(followed) = step.follows else { return Ok(()) };
    match objection(memory, touched, program, step, followed) {
        None => Ok(()),
        Some(why) => Err(Fault::Follows { at: at(), followed, why }),
    }
}

fn objection(
    memory: &Memory,
    touched: &Touched,
    program: &RankProgram,
    step: &Step,
    followed: u32,
) -> Option<&'static str> {
    let Action::Send { src, .. } = step.action else { return Some("only a send can follow") };
    if !step.after.contains(&followed) {
        return Some("it does not come after that step");
    }
    // Dependencies are earlier steps.
    let Some(dst) = program.steps[followed as usize].action.received() else {
        return Some("that step receives nothing");
    };
    if memory.span(dst) != memory.span(src) {
        return Some("it sends other chunks than that step receives");
    }
    let is_last = memory.span(src).all(|cell| touched.writer(cell) == Some(followed));
    (!is_last).then_some("what that step receives is overwritten before it is sent")
}
