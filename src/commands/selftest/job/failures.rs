//! Failures of a rank: an abort, and a kill. The other ranks must notice in time, and name the rank.

use crate::commands::selftest::{
    check::Check,
    finding::REPORT,
    message::{Message, step},
};
use rustix::process::{Signal, getpid, kill_process};
use std::{
    thread,
    time::{Duration, Instant},
};
use tbccl::{Communicator, Error, Result, SharedCommunicator};

/// Time for which the failing rank lets the others wait.
const BEFORE: Duration = Duration::from_millis(300);
/// Time within which the others must notice.
const NOTICED: Duration = Duration::from_secs(5);

/// The last rank aborts the communicator while the others are in a call.
pub(super) fn abort(comm: Communicator) -> Result<()> {
    let (rank, last) = (comm.rank().0, comm.size() - 1);
    let shared = SharedCommunicator::new(comm);
    shared.with(Communicator::barrier)??;
    if rank == last {
        thread::sleep(BEFORE);
        shared.abort();
        // The process stays, so that the others learn of the abort, and not of an end.
        thread::sleep(BEFORE);
        return Ok(());
    }
    step("waiting in a call that another rank aborts");
    let began = Instant::now();
    let outcome = shared.with(Communicator::barrier)?;
    report("abort", outcome.err(), began.elapsed(), (rank, last));
    Ok(())
}

/// The last rank kills itself while the others are in a call.
pub(super) fn kill(comm: &mut Communicator) -> Result<()> {
    let (rank, last) = (comm.rank().0, comm.size() - 1);
    comm.barrier()?;
    if rank == last {
        thread::sleep(BEFORE);
        let _ = kill_process(getpid(), Signal::KILL);
    }
    step("waiting in a call for a rank that is killed");
    let began = Instant::now();
    let outcome = comm.barrier();
    report("killed-rank", outcome.err(), began.elapsed(), (rank, last));
    Ok(())
}

/// Reports how a rank has noticed the failure of the last one.
fn report(name: &str, error: Option<Error>, waited: Duration, (rank, last): (u32, u32)) {
    let after = waited.saturating_sub(BEFORE);
    let ms = after.as_millis();
    let check = match error {
        None => Check::fail(name, format!("rank {rank} did not notice, its call succeeded"), REPORT),
        Some(error) if !error.to_string().contains(&format!("rank {last}")) => Check::fail(
            name,
            format!("rank {rank} got an error that does not name rank {last}: {error}"),
            REPORT,
        ),
        Some(error) if after > NOTICED => {
            Check::fail(name, format!("rank {rank} noticed after {ms} ms: {error}"), REPORT)
        }
        Some(error) => Check::pass(name, format!("noticed after {ms} ms")).with_details([error.to_string()]),
    };
    // One rank's success stands for all.
    if rank == 0 { Message::Check(check) } else { Message::Echo(check) }.print();
}
