//! The measurement: two threads of this process, bound to two cores, run over rings of their own.
//!
//! The ways of a size take turns, so that a machine whose cores move apart slows down all of them. Of the
//! batches of each the fastest counts: the first job of a machine starts while its other ranks start as well.
//! The threads are new ones, so that the cores to which the caller is bound stay what they are.

use super::{
    ends::{Content, End, Patience, Stalled, TOO_BUSY, pair},
    record::{Combine, ExchangeCost, Gather, Seen},
};
use std::{
    ops::Range,
    sync::atomic::{
        AtomicU64,
        Ordering::{Acquire, Release},
    },
    thread::{self, Thread},
    time::{Duration, Instant},
};
use transport::{Protocol, memory::ArenaLayout};

/// Sizes of the messages that are exchanged. The longest ones exceed the caches of a core together with what
/// is received, so that the ways compare as they do for any longer message.
const SIZES: [usize; 8] = [4 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 1 << 20, 2 << 20];
/// Number of sizes that all rounds have. Longer messages take most of the time of a round, and are exchanged
/// in the first rounds only, and again after an interruption.
const SHORT_SIZES: usize = 6;
/// Largest message that is combined in one stage, as selection does.
const ONE_STAGE_BYTES: usize = 32 << 10;
/// Bytes that a way exchanges in a batch, and its exchanges at least and at most. A batch is so short that
/// the threads of a busy machine often run without an interruption, and so long that both ends have equal
/// shares. One of the longest messages is enough for that.
const BATCH_BYTES: usize = 256 << 10;
const BATCH_EXCHANGES: (usize, usize) = (2, 16);
/// Rounds before those of interrupted batches, and rounds at most. The first one has the longest messages,
/// which use all pages for the first time, and does not count.
const ROUNDS: (u64, u64) = (3, 50);
/// Time after which only interrupted batches are repeated, and in which everything is measured or nothing.
const TIME: Duration = Duration::from_millis(90);
const DEADLINE: Duration = Duration::from_millis(180);
/// Round trips of a line in a batch, and batches of which the fastest counts.
const LINE_TRIPS: u64 = 50;
const BATCHES: u64 = 40;
/// Batches of yields, and yields of a batch.
const YIELDS: (u32, u32) = (40, 20);
/// Wakes that are timed at most, the time after which no further one is, and that in which the other thread
/// falls asleep before each.
const WAKES: u64 = 50;
const WAKES_TIME: Duration = Duration::from_millis(10);
const FALLS_ASLEEP: Duration = Duration::from_micros(50);

/// A word with cache lines to itself.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Line(AtomicU64);

impl Line {
    /// Waits until the word is at least `value`.
    fn wait_for(&self, value: u64, deadline: Instant) -> Result<u64, Stalled> {
        let mut patience = Patience::until(deadline);
        loop {
            let found = self.0.load(Acquire);
            if found >= value {
                return Ok(found);
            }
            patience.turn()?;
        }
    }
}

/// Words that the threads share, of which each is written by one of them.
#[derive(Debug, Default)]
struct Words {
    /// Words of a round trip.
    ping: Line,
    pong: Line,
    /// Rounds that may run; [`OVER`] at the end.
    rounds: Line,
    /// Batches of the round, one bit each.
    batches: Line,
    /// Wakes that were sent, and that were answered.
    wakes: Line,
    awake: Line,
}

const OVER: u64 = u64::MAX;

/// Measures the costs of this machine between two cores that this process may use; `None` if it may use only
/// one.
///
/// # Errors
/// [`Stalled`] when the system refuses memory, or the machine is too busy to run both threads.
pub(crate) fn measure(layout: ArenaLayout) -> Result<Option<Seen>, Stalled> {
    let began = Instant::now();
    let Some(cores) = two_cores() else { return Ok(None) };
    let deadline = began + DEADLINE;
    let [mut first, mut second] = pair(layout, SIZES[SIZES.len() - 1], deadline)?;
    let words = Words::default();
    let (measured, answered) = thread::scope(|scope| {
        let other = scope.spawn(|| {
            bind(cores.get(1));
            second.touch();
            answer(&mut second, &words)
        });
        let (sleeper, words, cores) = (other.thread().clone(), &words, &cores);
        let measuring = scope.spawn(move || {
            bind(cores.first());
            first.touch();
            let seen = observe(&mut first, words, &sleeper);
            // Ends the other thread in any case.
            words.rounds.0.store(OVER, Release);
            seen
        });
        (measuring.join(), other.join())
    });
    let panicked = |_| Err(Stalled::new("a thread panicked"));
    let seen = measured.unwrap_or_else(panicked)?;
    answered.unwrap_or_else(|_| Err(Stalled::new("a thread panicked")))?;
    Ok(Some(Seen { cores, took_ms: began.elapsed().as_secs_f64() * 1e3, ..seen }))
}

/// Runs the measuring thread.
fn observe(end: &mut End, words: &Words, sleeper: &Thread) -> Result<Seen, Stalled> {
    let line_ns = line_ns(words, end.deadline)?;
    let exchanges = exchanges(end, words)?;
    let wake_ns = wake_ns(words, sleeper, end.deadline)?;
    let yield_ns = yield_ns(end.deadline);
    Ok(Seen { cores: Vec::new(), line_ns, yield_ns, wake_ns, exchanges, took_ms: 0.0 })
}

/// Runs the other thread.
fn answer(end: &mut End, words: &Words) -> Result<(), Stalled> {
    for trip in 1..=LINE_TRIPS * BATCHES {
        words.ping.wait_for(trip, end.deadline)?;
        words.pong.0.store(trip, Release);
    }
    for round in 1.. {
        if words.rounds.wait_for(round, end.deadline)? == OVER {
            break;
        }
        run_round(end, words.batches.0.load(Acquire), |_, _| ())?;
    }
    for wake in 1..=WAKES {
        while words.wakes.0.load(Acquire) < wake {
            let left = end.deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            thread::park_timeout(left);
        }
        words.awake.0.store(wake, Release);
    }
    Ok(())
}

fn line_ns(words: &Words, deadline: Instant) -> Result<f64, Stalled> {
    let mut fastest = f64::INFINITY;
    let mut trip = 0;
    for _ in 0..BATCHES {
        let began = Instant::now();
        for _ in 0..LINE_TRIPS {
            trip += 1;
            words.ping.0.store(trip, Release);
            words.pong.wait_for(trip, deadline)?;
        }
        fastest = fastest.min(nanoseconds(began.elapsed()) / (2 * LINE_TRIPS) as f64);
    }
    Ok(fastest)
}

/// Measures the ways of exchanging messages, in rounds, until the time is over.
fn exchanges(end: &mut End, words: &Words) -> Result<Vec<ExchangeCost>, Stalled> {
    let began = Instant::now();
    let mut fastest = [[f64::INFINITY; WAYS.len()]; SIZES.len()];
    let (least, most) = ROUNDS;
    for round in 1..=most {
        let batches = match round {
            1 => batches_of(SIZES.len() - 1..SIZES.len()),
            _ if round <= least => u64::MAX,
            _ if began.elapsed() < TIME => interrupted(&smooth(fastest)) | batches_of(0..SHORT_SIZES),
            _ => interrupted(&smooth(fastest)),
        };
        if batches == 0 {
            break;
        }
        if Instant::now() > end.deadline {
            return Err(Stalled::new(TOO_BUSY));
        }
        words.batches.0.store(batches, Release);
        words.rounds.0.store(round, Release);
        run_round(end, batches, |(size, way), us| {
            if round > 1 {
                fastest[size][way] = fastest[size][way].min(us);
            }
        })?;
    }
    words.rounds.0.store(OVER, Release);
    let pulls = end.pulls;
    let cost = |(bytes, us): (usize, [f64; WAYS.len()])| {
        let [fresh @ .., staged_us, in_place_us] = us;
        let gather = |content: usize| Gather {
            staged_us: fresh[2 * content],
            pulled_us: pulls.then_some(fresh[2 * content + 1]),
        };
        let [fresh, rewritten, unchanged] = [0, 1, 2].map(gather);
        ExchangeCost { bytes, fresh, rewritten, unchanged, combined: Combine { staged_us, in_place_us } }
    };
    let fastest = smooth(fastest);
    if interrupted(&fastest) != 0 {
        return Err(Stalled::new(TOO_BUSY));
    }
    Ok(SIZES.into_iter().zip(fastest).map(cost).collect())
}

/// Returns the times, each at most that of longer messages: a longer one was interrupted.
fn smooth(mut times: [[f64; WAYS.len()]; SIZES.len()]) -> [[f64; WAYS.len()]; SIZES.len()] {
    for size in (1..times.len()).rev() {
        let longer = times[size];
        for (time, longer) in times[size - 1].iter_mut().zip(longer) {
            *time = time.min(longer);
        }
    }
    times
}

/// Returns the batches whose times exceed those of shorter messages by far more than the sizes tell: all of
/// them were interrupted. Where messages leave the caches of a core, four times the bytes take up to eight
/// times as long.
fn interrupted(times: &[[f64; WAYS.len()]]) -> u64 {
    let mut found = 0;
    for size in 1..times.len() {
        let most = 2.5 * SIZES[size] as f64 / SIZES[size - 1] as f64;
        for (way, (longer, shorter)) in times[size].iter().zip(times[size - 1]).enumerate() {
            found |= if *longer <= most * shorter { 0 } else { batch(size, way) };
        }
    }
    found
}

/// Returns the bit of the batch of a size and a way.
const fn batch(size: usize, way: usize) -> u64 {
    const { assert!(SIZES.len() * WAYS.len() <= u64::BITS as usize) };
    1 << (size * WAYS.len() + way)
}

/// Returns the batches of sizes, by their indices.
fn batches_of(sizes: Range<usize>) -> u64 {
    sizes.flat_map(|size| (0..WAYS.len()).map(move |way| batch(size, way))).sum()
}

/// An exchange of messages of a size.
type Exchange = fn(&mut End, usize) -> Result<(), Stalled>;

/// Exchanges that are compared, in the order of the costs of a size.
const WAYS: [Exchange; 8] = [
    |end, bytes| end.gather(Protocol::Copy, bytes, Content::Fresh),
    |end, bytes| end.gather(pull(end), bytes, Content::Fresh),
    |end, bytes| end.gather(Protocol::Copy, bytes, Content::Rewritten),
    |end, bytes| end.gather(pull(end), bytes, Content::Rewritten),
    |end, bytes| end.gather(Protocol::Copy, bytes, Content::Unchanged),
    |end, bytes| end.gather(pull(end), bytes, Content::Unchanged),
    |end, bytes| combine(end, Protocol::Copy, bytes),
    |end, bytes| combine(end, Protocol::Direct, bytes),
];

fn pull(end: &End) -> Protocol {
    if end.pulls { Protocol::Pull } else { Protocol::Copy }
}

fn combine(end: &mut End, way: Protocol, bytes: usize) -> Result<(), Stalled> {
    if bytes <= ONE_STAGE_BYTES { end.combine(way, bytes) } else { end.combine_in_stages(way, bytes) }
}

/// Runs batches; `took` gets the indices of size and way of each, and the microseconds of an exchange.
fn run_round(end: &mut End, batches: u64, mut took: impl FnMut((usize, usize), f64)) -> Result<(), Stalled> {
    for (size, bytes) in SIZES.into_iter().enumerate() {
        let (least, most) = BATCH_EXCHANGES;
        let exchanges = if size < SHORT_SIZES { (BATCH_BYTES / bytes).clamp(least, most) } else { 1 };
        for (index, exchange) in WAYS.into_iter().enumerate() {
            if batches & batch(size, index) == 0 {
                continue;
            }
            // Both ends begin together after the first one.
            exchange(end, bytes)?;
            let began = Instant::now();
            for _ in 0..exchanges {
                exchange(end, bytes)?;
            }
            took((size, index), nanoseconds(began.elapsed()) / 1e3 / exchanges as f64);
        }
    }
    Ok(())
}

fn wake_ns(words: &Words, sleeper: &Thread, deadline: Instant) -> Result<f64, Stalled> {
    let mut fastest = f64::INFINITY;
    let over = Instant::now() + WAKES_TIME;
    for wake in 1..=WAKES {
        let asleep = Instant::now() + FALLS_ASLEEP;
        while Instant::now() < asleep {
            std::hint::spin_loop();
        }
        let began = Instant::now();
        words.wakes.0.store(wake, Release);
        sleeper.unpark();
        words.awake.wait_for(wake, deadline)?;
        fastest = fastest.min(nanoseconds(began.elapsed()));
        if Instant::now() > over {
            break;
        }
    }
    words.wakes.0.store(OVER, Release);
    sleeper.unpark();
    Ok(fastest)
}

fn yield_ns(deadline: Instant) -> f64 {
    let (batches, yields) = YIELDS;
    let batch = |_| {
        let began = Instant::now();
        (0..yields).for_each(|_| thread::yield_now());
        nanoseconds(began.elapsed()) / f64::from(yields)
    };
    // The first batch counts in any case.
    let in_time = (0..batches).take_while(|batch| *batch == 0 || Instant::now() < deadline);
    in_time.map(batch).fold(f64::INFINITY, f64::min)
}

fn nanoseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e9
}

/// Returns two cores, as two ranks that are bound would have them; none of them where threads cannot be
/// bound, and `None` where there is only one core.
///
/// The launcher may have bound this process to a core of its own, so a new thread finds out which cores the
/// system allows.
#[cfg(target_os = "linux")]
fn two_cores() -> Option<Vec<usize>> {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let allowed = || {
        let mut all = CpuSet::new();
        (0..CpuSet::MAX_CPU).for_each(|core| all.set(core));
        // Without it only the cores of the process are considered.
        let _ = sched_setaffinity(None, &all);
        let allowed = sched_getaffinity(None).ok()?;
        Some((0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).collect::<Vec<_>>())
    };
    let allowed = thread::scope(|scope| scope.spawn(allowed).join().ok().flatten())?;
    let [first, rest @ ..] = &allowed[..] else { return None };
    let path = format!("/sys/devices/system/cpu/cpu{first}/topology/thread_siblings_list");
    let siblings = numbers(std::fs::read_to_string(path).unwrap_or_default().trim());
    // Two ranks have the first core and the one in the middle, which may be threads of the same core.
    let mut others = allowed[allowed.len() / 2..].iter().chain(rest);
    let second = others.find(|core| *core != first && !siblings.contains(core)).or(rest.first())?;
    Some(vec![*first, *second])
}

/// Reads a list of numbers and ranges, as `0,4-6`.
#[cfg(target_os = "linux")]
fn numbers(list: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        from.parse().ok().zip(to.parse().ok()).map(|(from, to): (usize, usize)| from..=to)
    };
    list.split(',').filter_map(range).flatten().collect()
}

/// Binds this thread to a core. A refusal does not prevent the measurement.
#[cfg(target_os = "linux")]
fn bind(core: Option<&usize>) {
    use rustix::thread::{CpuSet, sched_setaffinity};
    let Some(core) = core else { return };
    let mut own = CpuSet::new();
    own.set(*core);
    let _ = sched_setaffinity(None, &own);
}

#[cfg(not(target_os = "linux"))]
fn two_cores() -> Option<Vec<usize>> {
    let cores = thread::available_parallelism().map_or(1, std::num::NonZero::get);
    (cores > 1).then(Vec::new)
}

#[cfg(not(target_os = "linux"))]
fn bind(_core: Option<&usize>) {}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use transport::ring::RingLayout;

    #[test]
    fn all_ways_of_all_sizes_are_measured_in_bounded_time() {
        let layout = ArenaLayout { ranks: 2, lanes: 1, ring: RingLayout::default(), slab_bytes: 0 };
        for _ in 0..500 {
            let began = Instant::now();
            let measured = measure(layout);
            assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
            let seen = match measured {
                Ok(Some(seen)) => seen,
                Ok(None) => return assert!(two_cores().is_none()),
                // Other tests run beside this one.
                Err(error) => {
                    assert_eq!(error.to_string(), TOO_BUSY);
                    continue;
                }
            };
            assert_eq!(seen.exchanges.iter().map(|cost| cost.bytes).collect::<Vec<_>>(), SIZES);
            let times = seen.exchanges.iter().flat_map(ExchangeCost::times);
            assert!(
                times.chain([seen.line_ns, seen.yield_ns, seen.wake_ns]).all(|time| time > 0.0),
                "{seen:?}"
            );
            return;
        }
        panic!("the machine was never idle enough");
    }

    #[test]
    fn interrupted_times_are_lowered_to_those_of_longer_messages_or_refused() {
        let times = [1.0, 90.0, 6.0, 12.0, 24.0, 48.0, 200.0, 400.0].map(|time| [time; WAYS.len()]);
        let mut times = smooth(times);
        assert_eq!(times.map(|times| times[0]), [1.0, 6.0, 6.0, 12.0, 24.0, 48.0, 200.0, 400.0]);
        assert_eq!(interrupted(&times), 0);
        times[5][3] = 200.0;
        assert_eq!(interrupted(&times), batch(5, 3), "twice the bytes take eight times as long");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn lists_of_cores_are_read() {
        assert_eq!(numbers("0,4-6"), [0, 4, 5, 6]);
        assert_eq!(numbers(""), [0; 0]);
    }
}
