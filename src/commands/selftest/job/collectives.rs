//! Collectives on all types, every element checked against its definition, and tagged messages.

use crate::{
    commands::selftest::{
        check::Check,
        finding::REPORT,
        message::{Message, step},
    },
    reference::{
        Call, Case, Kind, Way, exchange_of, mix,
        traffic::{Traffic, TrafficError},
    },
};
use std::time::{Duration, Instant};
use tbccl::{Communicator, P2p, ReduceOp, Result};

/// Counts of elements per block, and those of a quick test. The last one travels in pieces.
const COUNTS: [usize; 6] = [1, 3, 1000, 5000, 65_537, 300_000];
const QUICK_COUNTS: usize = 3;

/// Runs all calls on all types and operations. Rank 0 reports each call; a rank with wrong results, too.
pub(super) fn collectives(comm: &mut Communicator, quick: bool) -> Result<()> {
    barriers(comm)?;
    for call in Call::all() {
        step(format!("running {}", name_of(call)));
        let began = Instant::now();
        let (cases, wrong) = run_call(comm, call, quick)?;
        let mut total = [wrong.len() as u64];
        comm.all_reduce_in_place(&mut total, ReduceOp::Sum)?;
        let rank = comm.rank();
        if let Some(first) = wrong.first() {
            let text =
                format!("rank {rank}: {} of {cases} results are wrong; the first: {first}", wrong.len());
            let check = Check::fail(name_of(call), text, REPORT).with_details(wrong.into_iter().take(20));
            Message::Check(check).print();
        } else if rank.0 == 0 && total[0] == 0 {
            let seconds = began.elapsed().as_secs_f64();
            let text = format!(
                "{cases} calls on {} ranks over {}, every element right",
                comm.size(),
                comm.transport()
            );
            Message::Check(Check { seconds, ..Check::pass(name_of(call), text) }).print();
        }
    }
    comm.barrier()
}

/// Runs barriers, and reports how long they take.
fn barriers(comm: &mut Communicator) -> Result<()> {
    const COUNT: u32 = 200;
    step("running barriers");
    comm.barrier()?;
    let began = Instant::now();
    for _ in 0..COUNT {
        comm.barrier()?;
    }
    let us = began.elapsed().as_secs_f64() * 1e6 / f64::from(COUNT);
    if comm.rank().0 == 0 {
        Message::Check(Check::pass("barrier", format!("{COUNT} barriers, {us:.1} us each"))).print();
    }
    Ok(())
}

/// Returns the name of a call in the report.
fn name_of(call: Call) -> String {
    match call {
        Call::Even(collective) => collective.name().to_owned(),
        Call::Vector(collective) => format!("{}_v", collective.name()),
        Call::Messages => "send-recv".to_owned(),
    }
}

/// Runs a call on every type with every operation; returns the number of cases, and those that are wrong.
fn run_call(comm: &mut Communicator, call: Call, quick: bool) -> Result<(usize, Vec<String>)> {
    let counts = &COUNTS[..if quick { QUICK_COUNTS } else { COUNTS.len() }];
    let (mut cases, mut wrong) = (0, Vec::new());
    for (number, &(dtype, op)) in call.pairs().iter().enumerate() {
        for in_place in call.places().iter().copied() {
            // Every type and operation has one count of a quick test, and each count otherwise.
            let chosen = if quick { &counts[number % counts.len()..][..1] } else { counts };
            for &count in chosen {
                let kind = Kind { call, way: Way::Chosen, in_place, dtype, op };
                let case = Case { kind, count, seed: mix(number as u64, count) };
                let mut exchange = exchange_of(case, comm)?;
                exchange.alone(comm)?;
                cases += 1;
                if let Err(why) = exchange.check() {
                    wrong.push(format!("{dtype:?} {op:?}, {count} elements, in place: {in_place}: {why}"));
                }
            }
        }
    }
    Ok((cases, wrong))
}

/// Sends tagged messages in random order, and checks them against MPI's rules.
pub(super) fn messages(comm: Communicator, quick: bool) -> Result<()> {
    let (rank, ranks) = (comm.rank(), comm.size());
    let transport = comm.transport();
    let p2p = P2p::new(comm)?;
    let messages = if quick { 300 } else { 3000 };
    step(format!("sending {messages} tagged messages"));
    let traffic = Traffic { seed: 7, round: 0, messages, limit: Duration::from_secs(20) };
    match traffic.run(&p2p) {
        Ok(()) if rank.0 == 0 => {
            let text =
                format!("{messages} messages between {ranks} ranks over {transport}, matched and intact");
            Message::Check(Check::pass("tagged", text)).print();
        }
        Ok(()) => {}
        Err(TrafficError::Failed(error)) => return Err(error),
        Err(TrafficError::Wrong(why)) => {
            Message::Check(Check::fail("tagged", format!("rank {rank}: {why}"), REPORT)).print();
        }
    }
    Ok(())
}
