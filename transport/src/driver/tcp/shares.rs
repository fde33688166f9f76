//! Shares of messages by connection: measured by the sender, and announced to the receiver.
//!
//! Connections over cables of unequal rates get unequal parts of a message, so that all parts arrive at the
//! same time. When the first part of a message is through, the sender compares how much of each other part
//! has arrived. It announces new shares by a message of its own ahead of the first message that uses them.

use super::wire::{PART_ALIGNMENT, Striping};

/// Maximum number of connections of a lane.
const MAX_SOCKETS: usize = super::TcpConfig::MAX_SOCKETS as usize;
/// Bytes of an announcement.
pub(super) const SHARES_BYTES: usize = MAX_SOCKETS;
/// Digest of an announcement, in place of an operation's digest.
pub(super) const SHARES_DIGEST: u64 = u64::from_le_bytes(*b"shares!!");
/// Minimum bytes of a message whose parts are compared. Systems buffer much of a shorter one.
pub(super) const MEASURED_BYTES: usize = 2 << 20;
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

/// The sender's measurements of a lane.
#[derive(Debug)]
pub(super) struct ShareMeter {
    /// Measured shares, relative to the largest one.
    measured: [f32; MAX_SOCKETS],
    /// Whether anything has been measured.
    is_measured: bool,
    announced: Shares,
}

impl Default for ShareMeter {
    fn default() -> ShareMeter {
        ShareMeter { measured: [1.0; MAX_SOCKETS], is_measured: false, announced: Shares::default() }
    }
}

impl ShareMeter {
    /// Returns the shares that the receiver knows.
    pub(super) fn announced(&self) -> &Shares {
        &self.announced
    }

    /// Takes in the bytes of each part that have arrived in the same time.
    pub(super) fn measure(&mut self, arrived: &[u64]) {
        let Some(most) = arrived.iter().copied().max().filter(|most| *most > 0) else { return };
        let weight = if self.is_measured { NEWEST } else { 1.0 };
        for (share, bytes) in self.measured.iter_mut().zip(arrived) {
            *share += (*bytes as f32 / most as f32 - *share) * weight;
        }
        let largest = self.measured[..arrived.len()].iter().copied().fold(0.0, f32::max);
        self.measured[..arrived.len()]
            .iter_mut()
            .for_each(|share| *share = (*share / largest).max(MIN_SHARE));
        self.is_measured = true;
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

    /// Returns the shares after messages over connections of these rates.
    fn after(rates: &[f64], messages: usize) -> (ShareMeter, Vec<f64>) {
        let striping = Striping { sockets: rates.len(), min_part_bytes: 1024 };
        let (mut meter, len) = (ShareMeter::default(), 16 << 20);
        let part = |meter: &ShareMeter, at| meter.announced().range(&striping, len, at).1 as f64;
        for _ in 0..messages {
            let times = rates.iter().enumerate().map(|(at, rate)| part(&meter, at) / rate);
            let first = times.fold(f64::INFINITY, f64::min);
            let arrived: Vec<u64> = rates.iter().map(|rate| (rate * first) as u64).collect();
            meter.measure(&arrived);
            if let Some(shares) = meter.news() {
                meter.announce(shares);
            }
        }
        let shares = (0..rates.len()).map(|at| part(&meter, at) / len as f64).collect();
        (meter, shares)
    }

    #[test]
    fn shares_follow_the_rates_of_the_connections() {
        for rates in [&[3.0, 1.0][..], &[1.0, 1.0], &[1.0, 8.0, 4.0]] {
            let (_, shares) = after(rates, 3);
            let sum: f64 = rates.iter().sum();
            for (share, rate) in shares.iter().zip(rates) {
                assert!((share - rate / sum).abs() < 0.03, "{shares:?} for {rates:?}");
            }
        }
    }

    #[test]
    fn a_cable_that_gets_faster_gets_its_share_back() {
        let (mut meter, _) = after(&[1.0, 1000.0], 20);
        assert!(meter.measured[0] >= MIN_SHARE);
        for _ in 0..20 {
            meter.measure(&[5, 5]);
        }
        assert!(meter.measured[0] > 0.95, "{meter:?}");
    }

    #[test]
    fn small_changes_are_not_announced() {
        let mut meter = ShareMeter::default();
        meter.measure(&[100, 99]);
        assert_eq!(meter.news(), None);
        meter.measure(&[100, 50]);
        assert!(meter.news().is_some());
        meter.measure(&[0, 0]);
    }
}
