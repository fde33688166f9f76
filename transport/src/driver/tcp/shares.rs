//! Shares of messages by connection: measured by the sender, and announced to the receiver.
//!
//! Connections over cables of unequal rates get unequal parts of a message, so that all parts arrive at the
//! same time. The sender looks at all connections whenever the parts of a message are written. Connections
//! that always have unacknowledged bytes are busy: their acknowledged bytes are in proportion to their rates.
//! A connection that idles beside a busy one gets a larger share, until it is busy too. New shares are
//! announced by a message of their own ahead of the first message that uses them.

use super::wire::{PART_ALIGNMENT, Striping};

/// Maximum number of connections of a lane.
const MAX_SOCKETS: usize = super::TcpConfig::MAX_SOCKETS as usize;
/// Bytes of an announcement.
pub(super) const SHARES_BYTES: usize = MAX_SOCKETS;
/// Digest of an announcement, in place of an operation's digest.
pub(super) const SHARES_DIGEST: u64 = u64::from_le_bytes(*b"shares!!");
/// Acknowledged bytes of all connections after which shares are compared.
const WINDOW_BYTES: u64 = 4 << 20;
/// Growth of the share of a connection that idles beside a busy one.
const GROWTH: f32 = 1.5;
/// Weight of a new measurement.
const NEWEST: f32 = 0.25;
/// Smallest share, relative to the largest one, so that a slow cable stays measured.
const MIN_SHARE: f32 = 1.0 / 64.0;
/// Difference from the announced shares, of 255, from which new ones are announced.
const ANNOUNCED_STEP: u8 = 6;

/// Relative shares of connections, as announced: 1 to 255.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shares([u8; SHARES_BYTES]);

impl Default for Shares {
    fn default() -> Shares {
        Shares([u8::MAX; SHARES_BYTES])
    }
}

impl Shares {
    /// Offset and length in bytes of a part of a message of `len` bytes.
    #[inline]
    pub(super) fn range(&self, striping: &Striping, len: usize, part: usize) -> (usize, usize) {
        let count = striping.count(len);
        if count == 1 {
            return (0, len);
        }
        let sum = |parts: usize| self.0[..parts].iter().map(|share| u64::from(*share)).sum::<u64>();
        let total = sum(count);
        let at = |part: usize| match part == count {
            true => len,
            // A message has less than 2^48 bytes, and the sum of shares less than 2^12.
            false => (len as u64 * sum(part) / total) as usize / PART_ALIGNMENT * PART_ALIGNMENT,
        };
        (at(part), at(part + 1) - at(part))
    }

    pub(super) fn encode(self) -> [u8; SHARES_BYTES] {
        self.0
    }

    /// Parses an announcement; returns `None` if a share is 0.
    pub(super) fn decode(bytes: [u8; SHARES_BYTES]) -> Option<Shares> {
        (!bytes.contains(&0)).then_some(Shares(bytes))
    }
}

/// A connection when the parts of a message are written.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sample {
    /// Bytes of the stream that the peer's system has.
    pub(super) acknowledged: u64,
    /// Whether sent bytes are not acknowledged.
    pub(super) is_busy: bool,
}

/// Samples since the shares were compared.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    samples: u32,
    /// Samples in which each connection was busy.
    busy: [u32; MAX_SOCKETS],
    /// Acknowledged bytes in the first sample.
    start: [u64; MAX_SOCKETS],
}

/// The sender's measurements of a lane.
#[derive(Debug)]
pub(super) struct ShareMeter {
    /// Measured shares, relative to the largest one.
    measured: [f32; MAX_SOCKETS],
    /// Whether anything has been measured.
    is_measured: bool,
    announced: Shares,
    window: Window,
}

impl Default for ShareMeter {
    fn default() -> ShareMeter {
        ShareMeter {
            measured: [1.0; MAX_SOCKETS],
            is_measured: false,
            announced: Shares::default(),
            window: Window::default(),
        }
    }
}

impl ShareMeter {
    /// Returns the shares that the receiver knows.
    pub(super) fn announced(&self) -> &Shares {
        &self.announced
    }

    /// Takes in the state of all connections when the parts of a message are written.
    pub(super) fn sample(&mut self, connections: &[Sample]) {
        let window = &mut self.window;
        if window.samples == 0 {
            let starts = window.start.iter_mut().zip(connections);
            starts.for_each(|(start, sample)| *start = sample.acknowledged);
        }
        window.samples += 1;
        let counts = window.busy.iter_mut().zip(connections);
        counts.for_each(|(busy, sample)| *busy += u32::from(sample.is_busy));
        let acknowledged = connections
            .iter()
            .zip(window.start)
            .map(|(sample, start)| sample.acknowledged - start.min(sample.acknowledged));
        if acknowledged.clone().sum::<u64>() >= WINDOW_BYTES {
            let mut bytes = [0; MAX_SOCKETS];
            bytes.iter_mut().zip(acknowledged).for_each(|(bytes, acknowledged)| *bytes = acknowledged);
            self.compare(&bytes[..connections.len()]);
        }
    }

    /// Forgets the samples, after a connection was replaced.
    pub(super) fn restart(&mut self) {
        self.window = Window::default();
    }

    /// Adjusts the shares to the bytes that were acknowledged in the same time.
    #[cold]
    fn compare(&mut self, acknowledged: &[u64]) {
        let Window { samples, busy, .. } = std::mem::take(&mut self.window);
        let is_busy = |at: usize| busy[at] * 4 >= samples * 3;
        let count = acknowledged.len();
        let busy = (0..count).filter(|at| is_busy(*at)).count();
        let most = acknowledged.iter().copied().max().unwrap_or(0);
        if busy == 0 || most == 0 {
            // The sender is the bottleneck.
            return;
        }
        let weight = if self.is_measured { NEWEST } else { 1.0 };
        for (at, share) in self.measured[..count].iter_mut().enumerate() {
            if busy == count {
                *share += (acknowledged[at] as f32 / most as f32 - *share) * weight;
            } else if !is_busy(at) {
                *share *= GROWTH;
            }
        }
        self.is_measured |= busy == count;
        let largest = self.measured[..count].iter().copied().fold(0.0, f32::max);
        self.measured[..count].iter_mut().for_each(|share| *share = (*share / largest).max(MIN_SHARE));
    }

    /// Returns shares to announce, if the measured ones differ enough from the announced ones.
    pub(super) fn news(&self) -> Option<Shares> {
        let rounded = self.measured.map(|share| (share * 255.0).round().clamp(1.0, 255.0) as u8);
        let differs = |(new, old): (&u8, &u8)| new.abs_diff(*old) >= ANNOUNCED_STEP;
        rounded.iter().zip(&self.announced.0).any(differs).then_some(Shares(rounded))
    }

    /// Records that the receiver gets these shares ahead of all later messages.
    pub(super) fn announce(&mut self, shares: Shares) {
        self.announced = shares;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_any_shares_cover_a_message_and_cut_no_element() {
        let striping = Striping { sockets: 3, min_part_bytes: 1024 };
        for bytes in [[255; 16], [1; 16], std::array::from_fn(|at| [200, 1, 77][at % 3])] {
            let shares = Shares::decode(bytes).expect("no share is 0");
            for len in [0, 1, 1023, 3072, 100_001, (1 << 20) + 63, (1 << 47) + 5] {
                let mut next = 0;
                for part in 0..striping.count(len) {
                    let (at, bytes) = shares.range(&striping, len, part);
                    assert!(at == next && at % PART_ALIGNMENT == 0, "{at} of {len}");
                    next = at + bytes;
                }
                assert_eq!(next, len);
            }
        }
        assert_eq!(Shares::decode([0; 16]), None);
        assert_eq!(Shares::decode(Shares::default().encode()), Some(Shares::default()));
    }

    /// Sends messages over simulated cables of these rates, in bytes per microsecond. The last 256 KiB of a
    /// message may be under way when the next one begins. Returns the shares.
    fn after(meter: &mut ShareMeter, rates: &[f64], messages: usize) -> Vec<f64> {
        let striping = Striping { sockets: rates.len(), min_part_bytes: 1024 };
        let (len, tail) = (512 << 10, (256 << 10) as f64);
        let (mut written, mut left) = (vec![0.0; rates.len()], vec![0.0; rates.len()]);
        for _ in 0..messages {
            for at in 0..rates.len() {
                let part = meter.announced().range(&striping, len, at).1 as f64;
                (written[at], left[at]) = (written[at] + part, left[at] + part);
            }
            let waits = left.iter().zip(rates).map(|(left, rate)| (left - tail) / rate);
            let time = 20.0 + waits.fold(0.0, f64::max);
            left.iter_mut().zip(rates).for_each(|(left, rate)| *left = (*left - rate * time).max(0.0));
            let sample = |(written, left): (&f64, &f64)| Sample {
                acknowledged: (written - left) as u64,
                is_busy: *left > 0.0,
            };
            let samples: Vec<Sample> = written.iter().zip(&left).map(sample).collect();
            meter.sample(&samples);
            if let Some(shares) = meter.news() {
                meter.announce(shares);
            }
        }
        (0..rates.len()).map(|at| meter.announced().range(&striping, len, at).1 as f64 / len as f64).collect()
    }

    #[test]
    fn shares_follow_the_rates_of_busy_connections() {
        for rates in [&[75.0, 25.0][..], &[50.0, 50.0], &[1.0, 8.0, 4.0], &[1000.0, 3000.0]] {
            let mut meter = ShareMeter::default();
            let shares = after(&mut meter, rates, 1500);
            let sum: f64 = rates.iter().sum();
            for (share, rate) in shares.iter().zip(rates) {
                assert!((share - rate / sum).abs() < 0.06, "{shares:?} for {rates:?}");
            }
        }
    }

    #[test]
    fn a_cable_that_gets_faster_gets_its_share_back() {
        let mut meter = ShareMeter::default();
        let slow = after(&mut meter, &[1.0, 1000.0], 1000);
        assert!(slow[0] < 0.1 && meter.measured[0] >= MIN_SHARE, "{slow:?}");
        let fast = after(&mut meter, &[1000.0, 1000.0], 3000);
        assert!((fast[0] - 0.5).abs() < 0.1, "{fast:?}");
    }

    #[test]
    fn connections_that_wait_for_the_sender_keep_their_shares() {
        let mut meter = ShareMeter::default();
        let shares = after(&mut meter, &[40_000.0, 90_000.0], 1000);
        assert_eq!(shares, [0.5, 0.5]);
    }

    #[test]
    fn small_changes_are_not_announced() {
        let mut meter = ShareMeter::default();
        let sample = |bytes| Sample { acknowledged: bytes, is_busy: true };
        meter.sample(&[sample(0), sample(0)]);
        meter.sample(&[sample(8_000_000), sample(7_950_000)]);
        assert_eq!(meter.news(), None);
        meter.sample(&[sample(0), sample(0)]);
        meter.sample(&[sample(8_000_000), sample(4_000_000)]);
        assert!(meter.news().is_some());
    }
}
