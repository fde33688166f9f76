//! The measurement of every pair and rail in both directions, one after the other.
//!
//! The rank that begins a round trip times it with its own clock. The receiving rank times the bandwidth,
//! since the bytes arrive there. The pair broadcasts its results to all ranks.

use super::{
    Args, page,
    report::Report,
    row::{Latency, Rail, Row},
};
use crate::commands::{CommandError, page::Folder, print};
use serde::{Serialize, de::DeserializeOwned};
use std::time::{Duration, Instant};
use tbccl::{Buffer, Communicator, Rank, Result};

/// Round trips before the measurement, and the minimum and maximum measured.
const WARMUP: usize = 50;
const MIN_ROUND_TRIPS: usize = 20;
const MAX_ROUND_TRIPS: usize = 50_000;

/// One direction of a rail to measure.
#[derive(Clone, Debug)]
struct Target {
    from: Rank,
    to: Rank,
    rails: usize,
    rail: Rail,
}

/// Measures all targets as one of the ranks. Returns whether all rails are up.
pub(super) fn run_rank(comm: &mut Communicator, args: &Args) -> Result<bool, CommandError> {
    let targets = targets(comm).map_err(|error| failed(comm, None, &error))?;
    let folder =
        args.report.as_deref().filter(|_| comm.rank() == Rank(0)).map(Folder::prepare).transpose()?;
    let size = args.size as usize;
    let mut memory = comm.alloc::<u8>(size).map_err(|error| failed(comm, None, &error.into()))?;
    // Unwritten pages all map to the same zero page.
    memory.fill(1);
    let mut report = (comm.rank() == Rank(0)).then(|| {
        let names: Vec<String> = targets.iter().map(|target| Row::of(target).name()).collect();
        Report::new(comm.transport(), comm.size(), (args.size, args.json), &names)
    });
    let (mut all_up, mut rows) = (true, Vec::new());
    for target in &targets {
        let row = measure(comm, target, args.time, &mut memory);
        let row = row.map_err(|error| failed(comm, Some(target), &error))?;
        all_up &= row.rail.up;
        if let Some(report) = &mut report {
            report.line(&row);
        }
        rows.push(row);
    }
    if let Some(report) = report {
        report.end();
    }
    if let Some(folder) = folder {
        let hosts: Vec<String> = comm.members().iter().map(|member| member.host.clone()).collect();
        let lines: String = rows.iter().map(|row| row.json(comm.transport(), args.size)).collect();
        let told = folder.write(&page::page(comm.transport(), args.size, &hosts, &rows), &lines)?;
        if !args.json {
            print(&told);
        }
    }
    comm.barrier().map_err(|error| failed(comm, None, &error.into()))?;
    Ok(all_up)
}

/// Measures the connection from rank 0 to rank 1 over all rails together.
///
/// Returns the median of half a round trip in microseconds, and the gigabytes per second at which messages of
/// the buffer's length arrive. The result is the same on all ranks.
pub(in crate::commands) fn measure_first_pair(
    comm: &mut Communicator,
    time: Duration,
    memory: &mut Buffer<u8>,
) -> Result<(f64, f64), CommandError> {
    let target = Target { from: Rank(0), to: Rank(1), rails: 0, rail: Rail { up: true, ..Rail::default() } };
    let row = measure(comm, &target, time, memory).map_err(|error| failed(comm, Some(&target), &error))?;
    Ok((row.latency.us_median, row.gigabits / 8.0))
}

/// Reason why a measurement stopped.
#[derive(Debug)]
enum Stop {
    Comm(tbccl::Error),
    Json(serde_json::Error),
}

impl From<tbccl::Error> for Stop {
    fn from(error: tbccl::Error) -> Stop {
        Stop::Comm(error)
    }
}

fn failed(comm: &Communicator, target: Option<&Target>, stop: &Stop) -> CommandError {
    let during =
        target.map(|target| format!(", pinging {} to {}", target.from, target.to)).unwrap_or_default();
    let why = match stop {
        Stop::Comm(error) => error.to_string(),
        Stop::Json(error) => {
            format!("a rank's message can't be read ({error}); do all ranks run the same tbccl?")
        }
    };
    CommandError::new(format_args!("rank {}{during}: {why}", comm.rank()))
}

impl Row {
    fn of(target: &Target) -> Row {
        let Target { from, to, rails, rail } = target.clone();
        Row { from: from.0, to: to.0, rails, rail, ..Row::default() }
    }
}

/// Returns all targets, in the same order on all ranks.
fn targets(comm: &mut Communicator) -> Result<Vec<Target>, Stop> {
    let mut targets = Vec::new();
    for (from, to) in directions(comm.size()) {
        let rails_here = if comm.rank() == from { rails_to(comm, to) } else { Vec::new() };
        let rails: Vec<Rail> = broadcast_value(comm, from, &rails_here)?;
        let count = rails.len();
        targets.extend(rails.into_iter().map(|rail| Target { from, to, rails: 1, rail }));
        if count != 1 {
            targets.push(Target { from, to, rails: count, rail: Rail { up: true, ..Rail::default() } });
        }
    }
    Ok(targets)
}

/// Returns every pair of ranks in both directions.
fn directions(ranks: u32) -> impl Iterator<Item = (Rank, Rank)> {
    let pairs = (0..ranks).flat_map(move |a| (a + 1..ranks).map(move |b| (a, b)));
    pairs.flat_map(|(a, b)| [(Rank(a), Rank(b)), (Rank(b), Rank(a))])
}

/// Returns the rails to a peer.
fn rails_to(comm: &Communicator, peer: Rank) -> Vec<Rail> {
    let rails = comm.rails(peer).into_iter().enumerate();
    let rail = |(number, info): (usize, tbccl::RailInfo)| Rail {
        number: Some(number),
        ours: Some(info.ours),
        theirs: Some(info.theirs),
        rate: info.gigabits,
        thunderbolt: info.is_thunderbolt,
        up: info.is_up,
    };
    rails.map(rail).collect()
}

/// Measures one target; every rank returns the result.
fn measure(
    comm: &mut Communicator,
    target: &Target,
    time: Duration,
    memory: &mut Buffer<u8>,
) -> Result<Row, Stop> {
    let Target { from, to, .. } = *target;
    let rank = comm.rank();
    let peer = [(from, to), (to, from)].into_iter().find_map(|(one, other)| (rank == one).then_some(other));
    let Some(peer) = peer else { return broadcast_value(comm, from, &Row::default()) };
    comm.prefer_rail(peer, target.rail.number);
    let mut row = Row::of(target);
    if rank == from {
        row.latency = begin_round_trips(comm, to, time)?;
        serve_requests(comm, to, memory)?;
        let mut reply = [0.0f64; 3];
        comm.recv(&mut reply, to)?;
        row.gigabits = reply[0];
        row.rail = both_ends(&current_rail(comm, to, &target.rail), (reply[1], reply[2] > 0.0));
    } else {
        return_round_trips(comm, from)?;
        let gigabits = request_and_receive(comm, from, time, memory)?;
        let Rail { rate, up, .. } = current_rail(comm, from, &target.rail);
        comm.send(&[gigabits, rate.unwrap_or(f64::NAN), f64::from(u8::from(up))], from)?;
    }
    let row = broadcast_value(comm, from, &row);
    comm.prefer_rail(peer, None);
    row
}

/// Returns the current state of a rail. For all rails together, the sum over those that are up.
fn current_rail(comm: &Communicator, peer: Rank, rail: &Rail) -> Rail {
    let mut rails = rails_to(comm, peer);
    match rail.number {
        Some(number) if number < rails.len() => rails.swap_remove(number),
        _ => {
            rails.retain(|one| one.up);
            let rates: Option<Vec<f64>> = rails.iter().map(|one| one.rate).collect();
            Rail {
                rate: rates.filter(|rates| !rates.is_empty()).map(|rates| rates.iter().sum()),
                thunderbolt: !rails.is_empty() && rails.iter().all(|one| one.thunderbolt),
                ..rail.clone()
            }
        }
    }
}

/// Combines both ends: a rail is up if both ends report it up, and as fast as the slower port.
fn both_ends(ours: &Rail, (rate, up): (f64, bool)) -> Rail {
    let rate = ours.rate.filter(|_| !rate.is_nan()).map(|own| own.min(rate));
    Rail { rate, up: ours.up && up, ..ours.clone() }
}

/// Broadcasts a value of `root`.
fn broadcast_value<T: Serialize + DeserializeOwned>(
    comm: &mut Communicator,
    root: Rank,
    value: &T,
) -> Result<T, Stop> {
    let mut bytes = serde_json::to_vec(value).map_err(Stop::Json)?;
    let mut len = [bytes.len() as u64];
    comm.broadcast(&mut len, root)?;
    bytes.resize(len[0] as usize, 0);
    comm.broadcast(&mut bytes, root)?;
    serde_json::from_slice(&bytes).map_err(Stop::Json)
}

/// Sends 1s that are returned, and a final 0.
fn begin_round_trips(comm: &mut Communicator, to: Rank, time: Duration) -> Result<Latency, Stop> {
    let mut round_trip = |more: u64| -> Result<f64, Stop> {
        let mut back = [0u64];
        let start = Instant::now();
        comm.send(&[more], to)?;
        comm.recv(&mut back, to)?;
        Ok(start.elapsed().as_secs_f64() * 1e6 / 2.0)
    };
    for _ in 0..WARMUP {
        round_trip(1)?;
    }
    let start = Instant::now();
    let mut samples = Vec::with_capacity(MAX_ROUND_TRIPS);
    while samples.len() < MIN_ROUND_TRIPS || start.elapsed() < time && samples.len() < MAX_ROUND_TRIPS {
        samples.push(round_trip(1)?);
    }
    round_trip(0)?;
    Ok(latency(samples))
}

fn latency(mut samples: Vec<f64>) -> Latency {
    samples.sort_unstable_by(f64::total_cmp);
    let n = samples.len();
    Latency {
        us_min: samples[0],
        us_median: (samples[(n - 1) / 2] + samples[n / 2]) / 2.0,
        us_p99: samples[(n * 99).div_ceil(100) - 1],
        round_trips: n,
    }
}

fn return_round_trips(comm: &mut Communicator, from: Rank) -> Result<(), Stop> {
    let mut value = [1u64];
    while value[0] != 0 {
        comm.recv(&mut value, from)?;
        comm.send(&value, from)?;
    }
    Ok(())
}

/// Sends the requested numbers of messages until 0 are requested.
fn serve_requests(comm: &mut Communicator, to: Rank, memory: &Buffer<u8>) -> Result<(), Stop> {
    loop {
        let mut requested = [0u64];
        comm.recv(&mut requested, to)?;
        if requested[0] == 0 {
            return Ok(());
        }
        for _ in 0..requested[0] {
            comm.send(memory, to)?;
        }
    }
}

/// Requests batches of messages, each twice as long as the one before, until the time is over. Returns the
/// Gb/s at which they arrive. The first message of a batch, and the first batch, do not count.
fn request_and_receive(
    comm: &mut Communicator,
    from: Rank,
    time: Duration,
    memory: &mut Buffer<u8>,
) -> Result<f64, Stop> {
    let (mut messages, mut seconds, mut batch) = (0u64, 0.0, 1u64);
    while messages == 0 || seconds < time.as_secs_f64() {
        comm.send(&[batch + 1], from)?;
        comm.recv(memory, from)?;
        let start = Instant::now();
        for _ in 0..batch {
            comm.recv(memory, from)?;
        }
        if batch > 1 {
            seconds += start.elapsed().as_secs_f64();
            messages += batch;
        }
        batch *= 2;
    }
    comm.send(&[0u64], from)?;
    Ok(memory.len() as f64 * messages as f64 * 8.0 / seconds.max(1e-9) / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_is_measured_both_ways() {
        let all: Vec<(u32, u32)> = directions(3).map(|(from, to)| (from.0, to.0)).collect();
        assert_eq!(all, [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)]);
    }

    #[test]
    fn the_slower_port_decides_and_both_ends_must_be_up() {
        let ours = Rail { rate: Some(80.0), up: true, ..Rail::default() };
        assert_eq!(both_ends(&ours, (40.0, true)).rate, Some(40.0));
        assert_eq!(both_ends(&ours, (f64::NAN, true)).rate, None);
        assert!(both_ends(&ours, (80.0, true)).up && !both_ends(&ours, (80.0, false)).up);
        assert!(!both_ends(&Rail { up: false, ..ours }, (80.0, true)).up);
    }

    #[test]
    fn half_round_trips_have_a_middle_and_a_tail() {
        let found = latency((1..=200).rev().map(f64::from).collect());
        assert_eq!((found.us_min, found.us_median, found.us_p99), (1.0, 100.5, 198.0));
    }
}
