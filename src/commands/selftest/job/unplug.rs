//! A cable that is pulled and plugged in again while calls with checked results go on.
//!
//! Rank 0 asks for the cable to be pulled, watches its ports in a thread, and asks for it to be plugged in
//! again once a port is down.

use crate::commands::selftest::{
    check::Check,
    finding::REPORT,
    message::{Ask, Message, step},
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};
use tbccl::{Communicator, Config, Error, ReduceOp, Result};
use transport::verbs::{Context, Library, PortState};

/// Elements of a call: some travel in slots, some in pieces.
const COUNTS: [usize; 3] = [100, 10_000, 200_000];
/// Time for which calls go on after the cable is back.
const AFTERWARDS: Duration = Duration::from_secs(1);
/// Time between two looks at the ports.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Stages, of which the number is shared with the watching thread.
const WATCHING: u32 = 0;
const DOWN: u32 = 1;
const UP_AGAIN: u32 = 2;

pub(super) fn run(comm: &mut Communicator, config: &Config) -> Result<()> {
    let stage = Arc::new(AtomicU32::new(WATCHING));
    let rank = comm.rank().0;
    if rank == 0 {
        let library = Library::load(config.verbs.library.as_deref());
        let contexts = library.and_then(|library| active_ports(&library));
        let contexts = contexts.map_err(|error| Error::InvalidArgument(error.to_string()))?;
        let watched = Arc::clone(&stage);
        thread::spawn(move || watch(&contexts, &watched));
    }
    step("calling all_reduce until a cable is pulled");
    let (mut calls, mut longest, mut wrong) = (0u64, Duration::ZERO, 0u64);
    let mut back: Option<Instant> = None;
    loop {
        let began = Instant::now();
        let is_done = back.is_some_and(|back| back.elapsed() > AFTERWARDS);
        let (count, done) = (COUNTS[calls as usize % COUNTS.len()], u64::from(rank == 0 && is_done));
        let mut data: Vec<u64> = (0..count as u64).map(|at| at * calls + u64::from(rank)).collect();
        data.push(done);
        comm.all_reduce_in_place(&mut data, ReduceOp::Sum)?;
        longest = longest.max(began.elapsed());
        let ranks = u64::from(comm.size());
        let expected = |at: u64| at * calls * ranks + ranks * (ranks - 1) / 2;
        wrong += data[..count].iter().zip(0..).filter(|(sum, at)| **sum != expected(*at)).count() as u64;
        calls += 1;
        if data[count] > 0 {
            break;
        }
        if back.is_none() && stage.load(Relaxed) == UP_AGAIN {
            back = Some(Instant::now());
        }
    }
    let text = format!("{calls} calls went on, the longest took {:.2} s", longest.as_secs_f64());
    if wrong > 0 {
        let text = format!("rank {rank}: {wrong} wrong elements in {calls} calls");
        Message::Check(Check::fail("cable", text, REPORT)).print();
    } else if rank == 0 {
        Message::Check(Check::pass("cable", text)).print();
    }
    comm.barrier()
}

/// Opens all devices whose port is active.
fn active_ports(library: &Library) -> std::result::Result<Vec<Context>, transport::verbs::VerbsError> {
    let names = library.devices()?.into_iter().map(|device| device.name);
    let opened = names.filter_map(|name| library.open(&name).ok());
    Ok(opened.filter(is_active).collect())
}

fn is_active(context: &Context) -> bool {
    context.port().is_ok_and(|port| port.state == PortState::ACTIVE)
}

/// Asks for the cable to be pulled, and to be plugged in again; notes both.
fn watch(contexts: &[Context], stage: &AtomicU32) {
    // The first calls have made their connections by then.
    thread::sleep(Duration::from_millis(300));
    Message::Ask(Ask::Pull).print();
    step("the cable is to be pulled");
    let asked = Instant::now();
    let down = loop {
        match contexts.iter().position(|context| !is_active(context)) {
            Some(down) => break &contexts[down],
            None => thread::sleep(LOOK_EVERY),
        }
    };
    stage.store(DOWN, Relaxed);
    let seconds = asked.elapsed().as_secs_f64();
    let text = format!("{} reports that it is down, {seconds:.1} s after the request", down.name());
    Message::Check(Check::pass("port", text)).print();
    step("the cable is pulled");
    // Calls meet the cable while it is pulled.
    thread::sleep(Duration::from_millis(500));
    Message::Ask(Ask::Plug).print();
    while !is_active(down) {
        thread::sleep(LOOK_EVERY);
    }
    step("the cable is plugged in again");
    stage.store(UP_AGAIN, Relaxed);
}
