//! The outcome of a simulation as a trace for browsers: the JSON array format of Chrome's trace viewer and of
//! Perfetto.
//!
//! A process is a rank, and its threads are its peers, so that the steps of one line follow each other. Local
//! steps have a thread of their own. Times are in microseconds.

use super::{Outcome, Timing};
use crate::{Schedule, schedule::Direction};
use std::fmt::Write;
use topology::Rank;

/// Returns the trace of an outcome, as JSON.
#[must_use]
pub fn trace(schedule: &Schedule, outcome: &Outcome) -> String {
    let mut text = String::from("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n");
    // Writing to a string cannot fail.
    let _ = write_events(&mut text, schedule, outcome);
    text.push_str("]}\n");
    text
}

fn write_events(text: &mut String, schedule: &Schedule, outcome: &Outcome) -> std::fmt::Result {
    for (rank, program) in (0..).zip(&schedule.programs) {
        let separator = if rank == 0 { "" } else { ",\n" };
        write!(text, "{separator}{{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":{rank},")?;
        write!(text, "\"args\":{{\"name\":\"rank {rank}\"}}}}")?;
        for (number, (step, timing)) in program.steps.iter().zip(outcome.timings(Rank(rank))).enumerate() {
            let Timing { ready, begin, end, reason, .. } = *timing;
            let (thread, kind) = match step.action.message() {
                Some((Rank(peer), Direction::Out)) => (2 * peer + 1, "send"),
                Some((Rank(peer), Direction::In)) => (2 * peer + 2, "receive"),
                None => (0, "local"),
            };
            let (from, took) = (begin * 1e6, (end - begin) * 1e6);
            write!(
                text,
                ",\n{{\"ph\":\"X\",\"name\":\"{}\",\"cat\":\"{kind}\",\"pid\":{rank},",
                step.action
            )?;
            write!(
                text,
                "\"tid\":{thread},\"ts\":{from:.4},\"dur\":{took:.4},\"args\":{{\"step\":{number},"
            )?;
            write!(
                text,
                "\"lane\":{},\"ready\":{:.4},\"after\":\"{}\"}}}}",
                step.lane,
                ready * 1e6,
                reason.name()
            )?;
        }
    }
    text.push('\n');
    Ok(())
}
