//! The measurement: every pair, every rail, both directions, one after the other.
//!
//! The rank that begins a round trip times it, since it has one clock; the rank that receives times the
//! bandwidth, since bytes have arrived there. Each of the pair sends its results to all ranks.

use super::{
    Args,
    report::Report,
    row::{Latency, Rail, Row},
};
use crate::commands::Failed;
use serde::{Serialize, de::DeserializeOwned};
use std::time::{Duration, Instant};
use tbccl::{Buffer, Communicator, Rank, Result};

/// Round trips before the measurement, and at least and at most of it.
const WARMUP: usize = 50;
const FEWEST: usize = 20;
const MOST: usize = 50_000;

/// One line to be measured.
#[derive(Clone, Debug)]
struct Line {
    from: Rank,
    to: Rank,
    rails: usize,
    rail: Rail,
}

/// Measures everything, as one of the ranks. True when all rails are up.
pub(super) fn go(comm: &mut Communicator, args: &Args) -> Result<bool, Failed> {
    let lines = lines(comm).map_err(|error| failed(comm, None, &error))?;
    let size = args.size as usize;
    let mut memory = comm.alloc::<u8>(size).map_err(|error| failed(comm, None, &error.into()))?;
    // Pages that were never written are all one page.
    memory.fill(1);
    let mut report = (comm.rank() == Rank(0)).then(|| {
        let names: Vec<String> = lines.iter().map(|line| Row::of(line).name()).collect();
        Report::new(comm.transport(), comm.size(), (args.size, args.json), &names)
    });
    let mut all_up = true;
    for line in &lines {
        let row = measure(comm, line, args.time, &mut memory);
        let row = row.map_err(|error| failed(comm, Some(line), &error))?;
        all_up &= row.rail.up;
        if let Some(report) = &mut report {
            report.line(&row);
        }
    }
    if let Some(report) = report {
        report.end();
    }
    comm.barrier().map_err(|error| failed(comm, None, &error.into()))?;
    Ok(all_up)
}

/// Measures the connection between ranks 0 and 1, over all rails together, as 0 sends and 1 receives:
/// microseconds of half a round trip, and the gigabytes per second at which messages of this length arrive.
/// The result is the same on all ranks.
pub(in crate::commands) fn first_pair(
    comm: &mut Communicator,
    time: Duration,
    memory: &mut Buffer<u8>,
) -> Result<(f64, f64), Failed> {
    let line = Line { from: Rank(0), to: Rank(1), rails: 0, rail: Rail { up: true, ..Rail::default() } };
    let row = measure(comm, &line, time, memory).map_err(|error| failed(comm, Some(&line), &error))?;
    Ok((row.latency.us_median, row.gigabits / 8.0))
}

/// Why it went no further.
#[derive(Debug)]
enum Stop {
    Comm(tbccl::Error),
    Words(serde_json::Error),
}

impl From<tbccl::Error> for Stop {
    fn from(error: tbccl::Error) -> Stop {
        Stop::Comm(error)
    }
}

fn failed(comm: &Communicator, line: Option<&Line>, stop: &Stop) -> Failed {
    let during = line.map(|line| format!(", pinging {} to {}", line.from, line.to)).unwrap_or_default();
    let why = match stop {
        Stop::Comm(error) => error.to_string(),
        Stop::Words(error) => {
            format!("a rank's words can't be read ({error}); do all ranks run the same tbccl?")
        }
    };
    Failed::new(format_args!("rank {}{during}: {why}", comm.rank()))
}

impl Row {
    fn of(line: &Line) -> Row {
        let Line { from, to, rails, rail } = line.clone();
        Row { from: from.0, to: to.0, rails, rail, ..Row::default() }
    }
}

/// All that is to be measured, the same on all ranks.
fn lines(comm: &mut Communicator) -> Result<Vec<Line>, Stop> {
    let mut lines = Vec::new();
    for (from, to) in directions(comm.size()) {
        let own = if comm.rank() == from { named(comm, to) } else { Vec::new() };
        let rails: Vec<Rail> = tell(comm, from, &own)?;
        let count = rails.len();
        lines.extend(rails.into_iter().map(|rail| Line { from, to, rails: 1, rail }));
        if count != 1 {
            lines.push(Line { from, to, rails: count, rail: Rail { up: true, ..Rail::default() } });
        }
    }
    Ok(lines)
}

/// Every pair, both ways.
fn directions(ranks: u32) -> impl Iterator<Item = (Rank, Rank)> {
    let pairs = (0..ranks).flat_map(move |a| (a + 1..ranks).map(move |b| (a, b)));
    pairs.flat_map(|(a, b)| [(Rank(a), Rank(b)), (Rank(b), Rank(a))])
}

/// The rails to a peer.
fn named(comm: &Communicator, peer: Rank) -> Vec<Rail> {
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

/// Measures one line; everyone gets the result.
fn measure(
    comm: &mut Communicator,
    line: &Line,
    time: Duration,
    memory: &mut Buffer<u8>,
) -> Result<Row, Stop> {
    let Line { from, to, .. } = *line;
    let rank = comm.rank();
    let peer = [(from, to), (to, from)].into_iter().find_map(|(one, other)| (rank == one).then_some(other));
    let Some(peer) = peer else { return tell(comm, from, &Row::default()) };
    comm.prefer_rail(peer, line.rail.number);
    let mut row = Row::of(line);
    if rank == from {
        row.latency = begin_round_trips(comm, to, time)?;
        send_what_is_asked_for(comm, to, memory)?;
        let mut told = [0.0f64; 3];
        comm.recv(&mut told, to)?;
        row.gigabits = told[0];
        row.rail = both_ends(&now(comm, to, &line.rail), (told[1], told[2] > 0.0));
    } else {
        return_round_trips(comm, from)?;
        let gigabits = ask_and_receive(comm, from, time, memory)?;
        let Rail { rate, up, .. } = now(comm, from, &line.rail);
        comm.send(&[gigabits, rate.unwrap_or(f64::NAN), f64::from(u8::from(up))], from)?;
    }
    let row = tell(comm, from, &row);
    comm.prefer_rail(peer, None);
    row
}

/// The rail as it is now. Of all rails together: those that are up.
fn now(comm: &Communicator, peer: Rank, rail: &Rail) -> Rail {
    let mut rails = named(comm, peer);
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

/// A rail is up when both ends say so, and as fast as the slower one.
fn both_ends(ours: &Rail, (rate, up): (f64, bool)) -> Rail {
    let rate = ours.rate.filter(|_| !rate.is_nan()).map(|own| own.min(rate));
    Rail { rate, up: ours.up && up, ..ours.clone() }
}

/// Tells everyone what `root` says.
fn tell<T: Serialize + DeserializeOwned>(comm: &mut Communicator, root: Rank, word: &T) -> Result<T, Stop> {
    let mut bytes = serde_json::to_vec(word).map_err(Stop::Words)?;
    let mut len = [bytes.len() as u64];
    comm.broadcast(&mut len, root)?;
    bytes.resize(len[0] as usize, 0);
    comm.broadcast(&mut bytes, root)?;
    serde_json::from_slice(&bytes).map_err(Stop::Words)
}

/// Sends 1s that come back, and a 0 at the end.
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
    let mut samples = Vec::with_capacity(MOST);
    while samples.len() < FEWEST || start.elapsed() < time && samples.len() < MOST {
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
    let mut word = [1u64];
    while word[0] != 0 {
        comm.recv(&mut word, from)?;
        comm.send(&word, from)?;
    }
    Ok(())
}

/// Sends as many messages as are asked for, until none are.
fn send_what_is_asked_for(comm: &mut Communicator, to: Rank, memory: &Buffer<u8>) -> Result<(), Stop> {
    loop {
        let mut wanted = [0u64];
        comm.recv(&mut wanted, to)?;
        if wanted[0] == 0 {
            return Ok(());
        }
        for _ in 0..wanted[0] {
            comm.send(memory, to)?;
        }
    }
}

/// Asks for messages, in rows of twice the length each until the time is over, and returns the Gb/s at which
/// they arrive. The first message of a row, and the first row, are not counted.
fn ask_and_receive(
    comm: &mut Communicator,
    from: Rank,
    time: Duration,
    memory: &mut Buffer<u8>,
) -> Result<f64, Stop> {
    let (mut messages, mut seconds, mut row) = (0u64, 0.0, 1u64);
    while messages == 0 || seconds < time.as_secs_f64() {
        comm.send(&[row + 1], from)?;
        comm.recv(memory, from)?;
        let start = Instant::now();
        for _ in 0..row {
            comm.recv(memory, from)?;
        }
        if row > 1 {
            seconds += start.elapsed().as_secs_f64();
            messages += row;
        }
        row *= 2;
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
