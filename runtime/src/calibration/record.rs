//! The results of a calibration, and the thresholds that follow from them.

use super::fingerprint::Fingerprint;
use serde::{Deserialize, Serialize};

/// Reading by system call is preferred where it takes at most this share of the time of staging for messages
/// that the program writes, and where these shares and that for unchanged messages have at most this product:
/// the messages of programs are of all kinds, and what they gain then is more than what they lose.
const WRITTEN_SHARE: f64 = 1.25;
const ALL_SHARES: f64 = 0.75;
/// Reading by system call is preferred for unchanged messages where it takes at most this share of the time
/// of staging: what is found out about a message takes a little time, and is wrong at times.
const UNCHANGED_SHARE: f64 = 0.9;
/// Lines that take more than this many times as long are of another regime. Regimes differ by 2 to 4.
const OTHER_REGIME: f64 = 1.7;
/// Most regimes that a record keeps.
const MOST_SEEN: usize = 3;

/// Measured costs of a machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// Version of this form.
    version: u32,
    /// The measured machine.
    pub fingerprint: Fingerprint,
    /// Costs in each regime in which the cores were seen, the latest first. The cores of a virtual machine
    /// may share a cache at one time and none at another.
    pub seen: Vec<Seen>,
}

/// Costs of a machine whose cores were as near each other as its `line_ns` says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Seen {
    /// Cores that measured; empty where the system binds no threads.
    pub cores: Vec<usize>,
    /// Time in which a cache line passes from one core to the other, in nanoseconds.
    pub line_ns: f64,
    /// Time of a yield of a core that nothing else wants, in nanoseconds.
    pub yield_ns: f64,
    /// Time from waking a sleeping thread until it runs, in nanoseconds.
    pub wake_ns: f64,
    /// Exchanges of messages, by increasing size.
    pub exchanges: Vec<ExchangeCost>,
    /// Time that the measurement took, in milliseconds.
    pub took_ms: f64,
}

/// Times in which two ranks exchange messages.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExchangeCost {
    /// Bytes of each message.
    pub bytes: usize,
    /// Messages that are combined with nothing, and that the ranks have just written, each in other memory
    /// than the last one.
    pub fresh: Gather,
    /// The same, each in the memory of the last one.
    pub rewritten: Gather,
    /// The same, and the ranks have not written them since the last exchange.
    pub unchanged: Gather,
    /// Messages in registered memory that are combined in place.
    pub combined: Combine,
}

/// Microseconds of an exchange of messages that are combined with nothing.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gather {
    /// Copied through a staging area.
    pub staged_us: f64,
    /// Read by system call; `None` where the system forbids it.
    pub pulled_us: Option<f64>,
}

/// Microseconds of an exchange of messages that are combined.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Combine {
    /// Copied through a staging area.
    pub staged_us: f64,
    /// Read in place.
    pub in_place_us: f64,
}

impl ExchangeCost {
    /// Returns all times, in microseconds.
    pub(super) fn times(&self) -> impl Iterator<Item = f64> {
        let Combine { staged_us, in_place_us } = self.combined;
        let gathers = [self.fresh, self.rewritten, self.unchanged];
        let pulled_us = gathers.into_iter().filter_map(|gather| gather.pulled_us);
        gathers.into_iter().map(|gather| gather.staged_us).chain(pulled_us).chain([staged_us, in_place_us])
    }

    /// Whether reading by system call gains more for some kinds of messages than it loses for others.
    fn is_pulled(&self) -> bool {
        // Compares as false where the system forbids it.
        let share = |gather: Gather| gather.pulled_us.unwrap_or(f64::NAN) / gather.staged_us;
        let [fresh, rewritten, unchanged] = [self.fresh, self.rewritten, self.unchanged].map(share);
        fresh.max(rewritten) <= WRITTEN_SHARE && fresh * rewritten * unchanged <= ALL_SHARES
    }

    /// Whether reading by system call gains for unchanged messages.
    fn is_pulled_unchanged(&self) -> bool {
        let Gather { staged_us, pulled_us } = self.unchanged;
        pulled_us.is_some_and(|pulled_us| pulled_us <= UNCHANGED_SHARE * staged_us)
    }
}

/// Smallest messages for which a way other than staging is taken; `usize::MAX` for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Thresholds {
    /// Messages that ranks exchange and do not combine, from unregistered memory, that are read by system
    /// call.
    pub(crate) gather_pull_min_bytes: usize,
    /// The same for messages that the program has not changed since the last call.
    pub(crate) unchanged_pull_min_bytes: usize,
    /// Messages from registered memory into which the call combines, that are read in place.
    pub(crate) combined_direct_min_bytes: usize,
}

impl Thresholds {
    /// Thresholds of a machine that was not calibrated.
    pub(crate) const DEFAULT: Thresholds = Thresholds {
        gather_pull_min_bytes: usize::MAX,
        unchanged_pull_min_bytes: usize::MAX,
        combined_direct_min_bytes: 0,
    };
}

impl Record {
    const VERSION: u32 = 4;

    /// Returns the record of one measurement.
    #[must_use]
    pub fn new(fingerprint: Fingerprint, seen: Seen) -> Record {
        Record { version: Record::VERSION, fingerprint, seen: vec![seen] }
    }

    /// Adds a measurement, which replaces one of the same regime.
    pub fn add(&mut self, seen: Seen) {
        self.seen.retain(|other| other.is_of_another_regime(&seen));
        self.seen.insert(0, seen);
        self.seen.truncate(MOST_SEEN);
    }

    /// Returns why the record cannot be used, if it can't.
    pub(super) fn fault(&self) -> Option<&'static str> {
        if self.version != Record::VERSION {
            return Some("it has another version");
        }
        let is_sound = |seen: &Seen| {
            let times = [seen.line_ns, seen.yield_ns, seen.wake_ns, seen.took_ms];
            let exchanges = seen.exchanges.iter();
            let times = times.into_iter().chain(exchanges.clone().flat_map(ExchangeCost::times));
            times.into_iter().all(|time| time.is_finite() && time > 0.0)
                && !seen.exchanges.is_empty()
                && exchanges.is_sorted_by(|a, b| a.bytes < b.bytes)
        };
        let is_sound =
            !self.seen.is_empty() && self.seen.len() <= MOST_SEEN && self.seen.iter().all(is_sound);
        (!is_sound).then_some("a value in it is impossible")
    }

    /// Returns the thresholds that gain, or lose nothing, in every regime that was seen.
    pub(crate) fn thresholds(&self) -> Thresholds {
        let most = |of: fn(&Seen) -> usize| self.seen.iter().map(of).max();
        let gather_pull_min_bytes = most(Seen::pulled_from).unwrap_or(usize::MAX);
        let unchanged_pull_min_bytes = most(Seen::pulled_unchanged_from).unwrap_or(usize::MAX);
        Thresholds {
            gather_pull_min_bytes,
            unchanged_pull_min_bytes: unchanged_pull_min_bytes.min(gather_pull_min_bytes),
            combined_direct_min_bytes: most(Seen::in_place_from).unwrap_or(0),
        }
    }

    /// Returns the smallest message that ranks exchange and do not combine that is read by system call.
    #[must_use]
    pub fn pulled_from(&self) -> Option<usize> {
        Some(self.thresholds().gather_pull_min_bytes).filter(|bytes| *bytes < usize::MAX)
    }

    /// Returns the same for messages that the program has not changed since the last call.
    #[must_use]
    pub fn pulled_unchanged_from(&self) -> Option<usize> {
        Some(self.thresholds().unchanged_pull_min_bytes).filter(|bytes| *bytes < usize::MAX)
    }

    /// Returns the smallest message that is read in place from memory into which its call combines.
    #[must_use]
    pub fn in_place_from(&self) -> Option<usize> {
        Some(self.thresholds().combined_direct_min_bytes).filter(|bytes| *bytes < usize::MAX)
    }
}

impl Seen {
    fn is_of_another_regime(&self, other: &Seen) -> bool {
        self.line_ns > OTHER_REGIME * other.line_ns || other.line_ns > OTHER_REGIME * self.line_ns
    }

    /// Returns the smallest size from which reading by system call gains.
    fn pulled_from(&self) -> usize {
        self.first(ExchangeCost::is_pulled).unwrap_or(usize::MAX)
    }

    /// Returns the smallest size from which it does for unchanged messages.
    fn pulled_unchanged_from(&self) -> usize {
        self.first(ExchangeCost::is_pulled_unchanged).unwrap_or(usize::MAX)
    }

    /// Returns the smallest size from which reading in place is no slower than staging; 0 if it never is.
    fn in_place_from(&self) -> usize {
        match self.first(|cost| cost.combined.in_place_us <= cost.combined.staged_us) {
            Some(bytes) if self.exchanges.first().is_some_and(|first| first.bytes == bytes) => 0,
            Some(bytes) => bytes,
            None => usize::MAX,
        }
    }

    /// Returns the smallest measured size from which a condition holds, for all sizes up to the largest one.
    fn first(&self, holds: impl Fn(&ExchangeCost) -> bool) -> Option<usize> {
        let from_there = self.exchanges.iter().rev().take_while(|cost| holds(cost));
        from_there.last().map(|cost| cost.bytes)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns a measurement with these times of staging, reading in place and reading by system call.
    fn seen(line_ns: f64, times: [[f64; 3]; 3]) -> Seen {
        let exchanges = [4 << 10, 64 << 10, 1 << 20].into_iter().zip(times);
        let exchanges = exchanges.map(|(bytes, [staged_us, in_place_us, pulled_us])| ExchangeCost {
            bytes,
            fresh: Gather { staged_us, pulled_us: Some(pulled_us) },
            rewritten: Gather { staged_us, pulled_us: Some(pulled_us) },
            unchanged: Gather { staged_us, pulled_us: Some(pulled_us) },
            combined: Combine { staged_us, in_place_us },
        });
        let exchanges = exchanges.collect();
        Seen { cores: vec![0, 1], line_ns, yield_ns: 300.0, wake_ns: 5e4, exchanges, took_ms: 120.0 }
    }

    /// Returns a sound record of a machine of this name.
    pub(in super::super) fn record(machine: &str) -> Record {
        let fingerprint = Fingerprint { machine: machine.to_owned(), ..Fingerprint::here() };
        Record::new(fingerprint, seen(50.0, [[1.0, 2.0, 2.0], [9.0, 12.0, 6.0], [100.0, 90.0, 60.0]]))
    }

    fn thresholds(record: &Record) -> (usize, usize) {
        let Thresholds { gather_pull_min_bytes, combined_direct_min_bytes, .. } = record.thresholds();
        (gather_pull_min_bytes, combined_direct_min_bytes)
    }

    #[test]
    fn a_way_is_taken_from_the_size_on_from_which_it_gains_at_every_size() {
        assert_eq!(thresholds(&record("x")), (64 << 10, 1 << 20));
        let of = |times| Record::new(Fingerprint::here(), seen(50.0, times));
        let in_between = of([[1.0, 0.5, 0.5], [9.0, 12.0, 9.0], [100.0, 90.0, 60.0]]);
        assert_eq!(thresholds(&in_between), (1 << 20, 1 << 20), "a gain below a loss does not count");
        let never = of([[1.0, 2.0, 2.0], [9.0, 12.0, 9.0], [100.0, 101.0, 95.0]]);
        assert_eq!(thresholds(&never), (usize::MAX, usize::MAX), "5 % are no clear gain");
        let always = of([[1.0, 1.0, 0.5], [9.0, 8.0, 5.0], [100.0, 90.0, 60.0]]);
        assert_eq!(thresholds(&always), (4 << 10, 0), "smaller messages were not measured");
        let mut forbidden = of([[1.0, 1.0, 0.5], [9.0, 8.0, 5.0], [100.0, 90.0, 60.0]]);
        forbidden.seen[0].exchanges.iter_mut().for_each(|cost| cost.fresh.pulled_us = None);
        assert_eq!(thresholds(&forbidden), (usize::MAX, 0));
    }

    /// Messages of 128 KiB and 512 KiB were read by system call where two ranks wrote them in the same memory
    /// each time, and calls took 1.5 to 1.8 times as long as with staged ones.
    #[test]
    fn messages_are_not_read_by_system_call_where_written_ones_lose() {
        let times = [[1.0, 1.0, 0.5], [9.0, 8.0, 5.0], [100.0, 90.0, 60.0]];
        let mut record = Record::new(Fingerprint::here(), seen(50.0, times));
        for (pulled_us, from) in [
            ([11.0, 9.0, 5.0], 4 << 10),
            ([9.0, 11.0, 5.0], 4 << 10),
            ([12.0, 5.0, 3.0], 1 << 20),
            ([5.0, 12.0, 3.0], 1 << 20),
            ([10.0, 10.0, 6.0], 1 << 20),
        ] {
            let ExchangeCost { fresh, rewritten, unchanged, .. } = &mut record.seen[0].exchanges[1];
            for (gather, pulled_us) in [fresh, rewritten, unchanged].into_iter().zip(pulled_us) {
                gather.pulled_us = Some(pulled_us);
            }
            assert_eq!(
                thresholds(&record),
                (from, 0),
                "staged 9 us; fresh, rewritten, unchanged {pulled_us:?}"
            );
        }
    }

    #[test]
    fn unchanged_messages_are_read_by_system_call_where_that_gains_for_them() {
        let times = [[1.0, 1.0, 2.0], [9.0, 9.0, 18.0], [100.0, 100.0, 200.0]];
        let mut record = Record::new(Fingerprint::here(), seen(50.0, times));
        let from = |record: &Record| (record.pulled_from(), record.pulled_unchanged_from());
        assert_eq!(from(&record), (None, None));
        for (cost, pulled_us) in record.seen[0].exchanges.iter_mut().zip([0.95, 8.0, 60.0]) {
            cost.unchanged.pulled_us = Some(pulled_us);
        }
        assert_eq!(from(&record), (None, Some(64 << 10)), "5 % are no clear gain");
        record.seen[0].exchanges[2].unchanged.pulled_us = Some(95.0);
        assert_eq!(from(&record), (None, None));
        let gains =
            Record::new(Fingerprint::here(), seen(50.0, [[1.0; 3], [9.0, 9.0, 6.0], [9.0, 9.0, 6.0]]));
        assert_eq!(from(&gains), (Some(64 << 10), Some(64 << 10)));
    }

    #[test]
    fn what_loses_in_one_regime_is_not_taken_and_a_regime_is_kept_once() {
        let mut record = record("x");
        record.add(seen(200.0, [[4.0, 1.0, 3.0], [30.0, 20.0, 29.0], [400.0, 300.0, 200.0]]));
        assert_eq!(record.seen.len(), 2);
        assert_eq!(thresholds(&record), (1 << 20, 1 << 20), "each from the regime that loses there");
        record.add(seen(60.0, [[1.0, 1.0, 0.5], [9.0, 8.0, 5.0], [100.0, 90.0, 60.0]]));
        assert_eq!(record.seen.iter().map(|seen| seen.line_ns).collect::<Vec<_>>(), [60.0, 200.0]);
        assert_eq!(thresholds(&record), (1 << 20, 0));
        for line_ns in [1e3, 5e3, 25e3] {
            record.add(seen(line_ns, [[1.0; 3]; 3]));
        }
        assert_eq!(record.seen.len(), MOST_SEEN);
        assert_eq!(record.fault(), None);
    }

    #[test]
    fn impossible_values_are_faults() {
        let with = |change: fn(&mut Record)| {
            let mut record = record("x");
            change(&mut record);
            record.fault()
        };
        assert_eq!(with(|_| ()), None);
        for change in [
            (|record| record.version += 1) as fn(&mut Record),
            |record| record.seen.clear(),
            |record| record.seen[0].exchanges.clear(),
            |record| record.seen[0].exchanges.reverse(),
            |record| record.seen[0].line_ns = 0.0,
            |record| record.seen[0].exchanges[1].fresh.staged_us = f64::NAN,
            |record| record.seen[0].exchanges[1].unchanged.pulled_us = Some(-1.0),
        ] {
            assert!(with(change).is_some());
        }
    }
}
