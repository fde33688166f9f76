//! The ring of events of a rank: words in memory or in a file, with the header that a reader needs.
//!
//! ```text
//! words 0..256      header: format, capacity, loss, first pairs of the clock, latest wait, names of
//!                   algorithms
//! words 256..       slots of 8 words: an event, and its number
//! then, in a file   the description of the rank, as JSON
//! ```
//!
//! Events are numbered from 1. The number is the last word that is written to a slot, and it is 0 while the
//! slot is written, so that an event which the end of the process has cut off is recognised. A call is
//! written when it begins, and its end and outcome when it ends. Among the events are pairs of the clock
//! ([`clock`](super::clock)), by which their times become nanoseconds when they are read.
//!
//! Invariants: one thread writes at a time. A ring that is read has been left by its process, or its reader
//! takes into account that it changes ([`recover`](super::recover)).

use super::{
    clock::{ClockPair, Timeline},
    event::{CLOCK_PAIR, CallEnd, END, Event, EventWords, UnfinishedKey, is_under_way, with_outcome},
};
use std::{
    collections::HashSet,
    fs::File,
    io,
    os::unix::fs::FileExt,
    sync::atomic::{
        AtomicU64,
        Ordering::{Relaxed, Release, SeqCst},
        compiler_fence,
    },
};
use transport::memory::Words;

/// Version of the words; the first word of a file has it below the magic number.
pub(super) const FORMAT: u64 = 2;
const MAGIC: u64 = u64::from_be_bytes(*b"tbccl\0\0\0") | FORMAT;

/// Words of the header: the magic number, then these.
const CAPACITY: usize = 1;
const LOST_UNTIL: usize = 2;
const NAMES_LEN: usize = 3;
/// Two pairs of the clock: ticks, nanoseconds and error of each.
const PAIRS: usize = 4;
/// Time at which the latest long wait still lasted.
const WAITED_UNTIL: usize = 10;
const NAMES: usize = 11;
const HEADER: usize = 256;

/// Words of a slot, of which the last one has the number of the event.
const SLOT: usize = 8;
const NUMBER: usize = 7;

/// Bytes of a ring whose pages are there from the start, more than those of the default number of events: a
/// page fault takes as long as several events.
const POPULATED_BYTES: usize = 16 << 20;

/// The latest events of a rank.
#[derive(Debug)]
pub(super) struct Ring {
    words: Words,
    capacity: usize,
    /// Number of the next event.
    next: u64,
    /// Index of its slot.
    slot: usize,
    /// Bytes of the names of algorithms, of which the header keeps as many as it has room for.
    names: Vec<u8>,
}

/// An event that makes room for a new one.
#[derive(Debug)]
pub(super) struct Overwritten {
    pub(super) number: u64,
    pub(super) words: EventWords,
}

impl Ring {
    /// Creates a ring of `capacity` events in memory.
    pub(super) fn in_memory(capacity: usize, start: &[ClockPair; 2]) -> io::Result<Ring> {
        Ok(Ring::of(Words::private(words_of(capacity))?, capacity, start))
    }

    /// Creates a ring of `capacity` events in a new file, which ends with the description of the rank.
    pub(super) fn in_file(
        file: &File,
        capacity: usize,
        start: &[ClockPair; 2],
        about: &[u8],
    ) -> io::Result<Ring> {
        let words = Words::of_file(file, words_of(capacity))?;
        file.write_all_at(about, 8 * words_of(capacity) as u64)?;
        Ok(Ring::of(words, capacity, start))
    }

    fn of(words: Words, capacity: usize, start: &[ClockPair; 2]) -> Ring {
        words.populate(POPULATED_BYTES);
        let header = words.as_slice();
        header[CAPACITY].store(capacity as u64, Relaxed);
        for (words, pair) in header[PAIRS..WAITED_UNTIL].chunks(3).zip(start) {
            let pair = [pair.ticks, pair.nanos, pair.error];
            words.iter().zip(pair).for_each(|(word, value)| word.store(value, Relaxed));
        }
        header[0].store(MAGIC, Release);
        Ring { words, capacity, next: 1, slot: 0, names: Vec::new() }
    }

    #[inline]
    fn slot(&self, at: usize) -> &[AtomicU64; SLOT] {
        let first = HEADER + at * SLOT;
        let slot = &self.words.as_slice()[first..first + SLOT];
        slot.try_into().expect("the words of a slot")
    }

    /// Returns the event that the next one overwrites, if the ring is full.
    #[inline]
    pub(super) fn oldest(&self) -> Option<Overwritten> {
        if self.next <= self.capacity as u64 {
            return None;
        }
        let slot = self.slot(self.slot);
        let words = std::array::from_fn(|at| slot[at].load(Relaxed));
        Some(Overwritten { number: self.next - self.capacity as u64, words })
    }

    /// Returns the number of the next event.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Records that a long wait lasted until a time.
    pub(super) fn set_waited_until(&self, time: u64) {
        self.words.as_slice()[WAITED_UNTIL].store(time, Release);
    }

    /// Records that an event is lost.
    pub(super) fn lose(&self, end: u64) {
        let until = &self.words.as_slice()[LOST_UNTIL];
        until.store(until.load(Relaxed).max(end), Relaxed);
    }

    /// Writes an event, and returns its number.
    ///
    /// The fences order the stores for a reader that comes after the process: a process that is killed has
    /// carried out all stores before the one at which it ends.
    #[inline]
    pub(super) fn push(&mut self, words: &EventWords) -> u64 {
        let (number, slot) = (self.next, self.slot(self.slot));
        slot[NUMBER].store(0, Relaxed);
        compiler_fence(SeqCst);
        for (at, word) in words.iter().enumerate() {
            slot[at].store(*word, Relaxed);
        }
        slot[NUMBER].store(number, Release);
        self.next += 1;
        self.slot = if self.slot + 1 == self.capacity { 0 } else { self.slot + 1 };
        number
    }

    /// Returns the slot of an event, if it has not been overwritten.
    #[inline]
    fn find(&self, number: u64) -> Option<&[AtomicU64; SLOT]> {
        let age = self.next - number;
        if age > self.capacity as u64 {
            return None;
        }
        let age = age as usize;
        let at = if self.slot >= age { self.slot - age } else { self.slot + self.capacity - age };
        Some(self.slot(at))
    }

    /// Sets the end of a call. Returns whether it is in the ring.
    #[inline]
    pub(super) fn set_end(&self, number: u64, end: u64) -> bool {
        let slot = self.find(number);
        slot.inspect(|slot| slot[END].store(end, Release)).is_some()
    }

    /// Sets the outcome of a call that is in the ring, after its end.
    #[inline]
    pub(super) fn set_outcome(&self, number: u64, outcome: CallEnd) {
        if let Some(slot) = self.find(number) {
            slot[0].store(with_outcome(slot[0].load(Relaxed), outcome), Release);
        }
    }

    /// Appends the name of an algorithm to the header.
    pub(super) fn add_name(&mut self, name: &str) {
        self.names.extend(name.bytes().chain([b'\n']));
        let room = &self.words.as_slice()[NAMES..HEADER];
        for (word, bytes) in room.iter().zip(self.names.chunks(8)) {
            let mut padded = [0; 8];
            padded[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_le_bytes(padded), Relaxed);
        }
        let len = self.names.len().min(8 * room.len());
        self.words.as_slice()[NAMES_LEN].store(len as u64, Release);
    }

    /// Returns the events and their loss. `end` is the pair of the clock at this moment.
    pub(super) fn content(&self, end: Option<ClockPair>) -> Content {
        let words = self.words.as_slice();
        Content::of(&|at| words[at].load(Relaxed), self.capacity, end)
    }
}

fn words_of(capacity: usize) -> usize {
    HEADER + capacity * SLOT
}

/// The events of a ring. Times are nanoseconds on the host's monotonic clock.
#[derive(Debug)]
pub(super) struct Content {
    /// The events in the order of their numbers, which is that of their ends but for calls.
    pub(super) events: Vec<Event>,
    /// Number of events that are not there.
    pub(super) lost: u64,
    /// Time of the latest end among the lost events.
    pub(super) lost_until: u64,
    /// Time until which the latest long wait lasted, at least.
    pub(super) waited_until: u64,
    /// The relation by which ticks became nanoseconds.
    pub(super) timeline: Timeline,
    /// Nanoseconds by which the times are off at most.
    pub(super) clock_error: u64,
}

impl Content {
    /// Reads the slots of a ring, by a function that returns its words.
    fn of(word: &dyn Fn(usize) -> u64, capacity: usize, end: Option<ClockPair>) -> Content {
        let mut pairs: Vec<ClockPair> = first_pairs(word).into_iter().chain(end).collect();
        let (mut events, lost) = slots(word, capacity, &mut pairs);
        let latest = events.iter().map(Event::latest).max().unwrap_or(0);
        let timeline = Timeline::new(pairs);
        for event in &mut events {
            *event = event.with_times(|ticks| timeline.nanos(ticks));
        }
        without_superseded(&mut events);
        let [lost_until, waited_until] = [LOST_UNTIL, WAITED_UNTIL].map(|at| timeline.nanos(word(at)));
        Content { events, lost, lost_until, waited_until, clock_error: timeline.error(latest), timeline }
    }
}

/// Returns the pairs of the clock in the header.
fn first_pairs(word: &dyn Fn(usize) -> u64) -> [ClockPair; 2] {
    [PAIRS, PAIRS + 3].map(|at| ClockPair { ticks: word(at), nanos: word(at + 1), error: word(at + 2) })
}

/// Returns the events in the order of their numbers and how many are lost, and adds the pairs of the clock
/// among them to `pairs`.
fn slots(word: &dyn Fn(usize) -> u64, capacity: usize, pairs: &mut Vec<ClockPair>) -> (Vec<Event>, u64) {
    let number = |at: usize| word(HEADER + at * SLOT + NUMBER);
    let fits = |at: &usize| number(*at) > 0 && (number(*at) - 1) % capacity as u64 == *at as u64;
    let latest = (0..capacity).filter(fits).map(number).max().unwrap_or(0);
    let is_there = |at: &usize| fits(at) && latest - number(*at) < capacity as u64;
    let (mut found, known_pairs) = (Vec::new(), pairs.len());
    for at in (0..capacity).filter(is_there) {
        let words: EventWords = std::array::from_fn(|word_at| word(HEADER + at * SLOT + word_at));
        if words[0] == CLOCK_PAIR {
            pairs.push(ClockPair::decode(&words));
        } else if let Some(event) = Event::decode(words) {
            found.push((number(at), event));
        }
    }
    found.sort_unstable_by_key(|(number, _)| *number);
    let lost = latest - (found.len() + pairs.len() - known_pairs) as u64;
    (found.into_iter().map(|(_, event)| event).collect(), lost)
}

/// Removes events without an end of which there is a later event.
fn without_superseded(events: &mut Vec<Event>) {
    let open = events.iter().filter(|event| event.is_unfinished()).filter_map(Event::unfinished_key);
    let open: HashSet<UnfinishedKey> = open.collect();
    if open.is_empty() {
        return;
    }
    let mut later = HashSet::new();
    let mut is_latest: Vec<bool> = events
        .iter()
        .rev()
        .map(|event| match event.unfinished_key().filter(|key| open.contains(key)) {
            Some(key) => later.insert(key) || !event.is_unfinished(),
            None => true,
        })
        .collect();
    events.retain(|_| is_latest.pop().unwrap_or(true));
}

/// A ring as its process has left it.
#[derive(Debug)]
pub(super) struct LeftRing<'f> {
    pub(super) content: Content,
    pub(super) algorithms: Vec<String>,
    /// Description of the rank.
    pub(super) about: &'f [u8],
}

/// Reads the bytes of a file with a ring.
///
/// # Errors
/// A text that says what the file lacks, as the rest of a sentence.
pub(super) fn read(bytes: &[u8]) -> Result<LeftRing<'_>, String> {
    let (words, _) = bytes.as_chunks::<8>();
    let word = |at: usize| u64::from_le_bytes(words[at]);
    if words.len() < HEADER || word(0) == 0 {
        return Err("the rank ended before it had written the header".to_owned());
    }
    if word(0) != MAGIC {
        return Err("it is no ring of events of this version of tbccl".to_owned());
    }
    let capacity = usize::try_from(word(CAPACITY)).ok().filter(|capacity| {
        let end = capacity.checked_mul(SLOT).and_then(|slots| slots.checked_add(HEADER));
        *capacity > 0 && end.is_some_and(|end| end <= words.len())
    });
    let Some(capacity) = capacity else { return Err("the file ends early; was the disk full?".to_owned()) };
    let names = &words[NAMES..HEADER].as_flattened();
    let names = &names[..names.len().min(usize::try_from(word(NAMES_LEN)).unwrap_or(0))];
    Ok(LeftRing {
        content: Content::of(&word, capacity, None),
        algorithms: String::from_utf8_lossy(names).lines().map(str::to_owned).collect(),
        about: &bytes[8 * words_of(capacity)..],
    })
}

/// Whether an overwritten event is a call whose end is still to come.
pub(super) fn is_open_call(words: &EventWords) -> bool {
    is_under_way(words[0])
}
