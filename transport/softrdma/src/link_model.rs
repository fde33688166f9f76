//! The model of a cable: how long a message takes, and whether it arrives intact.
//!
//! Each direction of a cable, a [`Lane`], has a virtual clock that all processes share: the time at which the
//! last message has left. A message starts after that time, occupies the lane for its serialization time, and
//! arrives one latency later. No process waits here; the reader of a completion queue hides completions that
//! are not due yet.
//!
//! Invariants:
//!
//! - Random outcomes are a function of seed, direction and message number. So message k of a lane has the
//!   same outcome in every run, independent of timing.
//! - Messages of a lane arrive in the order in which [`LinkModel::transmit`] numbered them, even with
//!   jitter.
//! - A lane of all zeroes is a new one.

use std::{
    sync::atomic::{
        AtomicU64,
        Ordering::{AcqRel, Acquire, Relaxed},
    },
    time::Duration,
};

/// The properties of a cable. The default is an ideal cable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkModel {
    /// Nanoseconds from the departure of the last bit to its arrival.
    pub latency_ns: u64,
    /// Picoseconds per byte; 0 for unlimited bandwidth.
    pub ps_per_byte: u64,
    /// Bytes of the frames that a message takes whole; 0 if it takes its own bytes only.
    pub frame_bytes: u64,
    /// Maximum random addition to the latency, in nanoseconds.
    pub jitter_ns: u64,
    /// Probability that a message is lost.
    pub loss: Probability,
    /// Probability that a message arrives with a flipped bit.
    pub corruption: Probability,
    /// Seed of the random numbers.
    pub seed: u64,
}

/// A probability in units of 2^-64. The largest value is certainty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Probability(u64);

impl Probability {
    /// Probability 0.
    pub const NEVER: Probability = Probability(0);

    /// Converts a probability from 0 to 1; returns `None` for other values.
    #[must_use]
    pub fn new(probability: f64) -> Option<Probability> {
        // Float conversions saturate, so 1.0 becomes the largest value, which `happens` treats as certain.
        (0.0..=1.0).contains(&probability).then(|| Probability((probability * 2_f64.powi(64)) as u64))
    }

    /// Whether the event happens for this random number.
    #[must_use]
    pub const fn happens(self, random: u64) -> bool {
        random < self.0 || self.0 == u64::MAX
    }
}

/// One direction of a cable, in memory that all processes share.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Lane {
    /// Time at which the last message has left, in nanoseconds of the monotonic clock.
    pub free_at: AtomicU64,
    /// Time at which the last message arrives, in nanoseconds of the monotonic clock. Never decreases.
    pub last_arrival: AtomicU64,
    /// Number of the next message.
    pub next_number: AtomicU64,
    /// Messages sent.
    pub messages: AtomicU64,
    /// Bytes of those messages.
    pub bytes: AtomicU64,
    /// Messages lost at random, or because the cable was unplugged.
    pub dropped: AtomicU64,
    /// Messages that arrived with a flipped bit.
    pub corrupted: AtomicU64,
}

/// The times and the outcome of a message on a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmission {
    /// Time at which the last bit has left the sender; at most `arrives`.
    pub departs: u64,
    /// Time at which the last bit reaches the receiver; not before any earlier message of the lane.
    pub arrives: u64,
    /// Whether the bytes arrive.
    pub delivery: Delivery,
}

/// The outcome of a message's transmission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The bytes arrive unchanged.
    Intact,
    /// The bytes are lost.
    Lost,
    /// The bytes arrive with one bit flipped: this number modulo the number of bits.
    Corrupted(u64),
}

impl LinkModel {
    /// Header bytes that each message adds on the wire.
    pub const OVERHEAD_BYTES: u64 = 64;

    /// Whether the cable neither delays nor damages messages. They then need not pass
    /// [`LinkModel::transmit`].
    #[must_use]
    pub fn is_ideal(&self) -> bool {
        *self == LinkModel { seed: self.seed, ..LinkModel::default() }
    }

    /// Whether the cable delays messages.
    #[must_use]
    pub const fn is_timed(&self) -> bool {
        self.latency_ns | self.ps_per_byte | self.jitter_ns != 0
    }

    /// Returns the time for which a message of `bytes` bytes occupies the lane.
    #[must_use]
    pub const fn serialization(&self, bytes: u64) -> Duration {
        let bytes = self.carried(bytes).saturating_add(LinkModel::OVERHEAD_BYTES);
        Duration::from_nanos(bytes.saturating_mul(self.ps_per_byte) / 1000)
    }

    /// Returns the bytes that a message takes on the cable, without its header: those of its frames if these
    /// travel whole, and then one frame for an empty message.
    const fn carried(&self, bytes: u64) -> u64 {
        match self.frame_bytes {
            0 => bytes,
            frame if bytes == 0 => frame,
            frame => bytes.div_ceil(frame).saturating_mul(frame),
        }
    }

    /// Sends a message of `bytes` bytes at `now`, in nanoseconds of the monotonic clock, and counts it.
    ///
    /// `direction` is 0 or 1; `lane` is the lane of that direction.
    pub fn transmit(&self, lane: &Lane, direction: u64, bytes: u64, now: u64) -> Transmission {
        let number = lane.next_number.fetch_add(1, Relaxed);
        let departs = if self.ps_per_byte == 0 { now } else { self.reserve(lane, bytes, now) };
        let random = |purpose| self.random(direction, number, purpose);
        let jitter = if self.jitter_ns == 0 { 0 } else { random(Purpose::Jitter) % (self.jitter_ns + 1) };
        let mut arrives = departs.saturating_add(self.latency_ns + jitter);
        if self.jitter_ns != 0 {
            arrives = arrives.max(lane.last_arrival.fetch_max(arrives, AcqRel));
        }
        let delivery = if self.loss.happens(random(Purpose::Loss)) {
            Delivery::Lost
        } else if self.corruption.happens(random(Purpose::Corruption)) {
            Delivery::Corrupted(random(Purpose::Bit))
        } else {
            Delivery::Intact
        };
        lane.count(bytes, delivery);
        Transmission { departs, arrives, delivery }
    }

    /// Reserves the lane for a message, and returns the time at which the message has left.
    fn reserve(&self, lane: &Lane, bytes: u64, now: u64) -> u64 {
        let takes = self.serialization(bytes).as_nanos() as u64;
        let mut free_at = lane.free_at.load(Acquire);
        loop {
            // Saturates because another process may have written any value.
            let departs = free_at.max(now).saturating_add(takes);
            match lane.free_at.compare_exchange_weak(free_at, departs, AcqRel, Acquire) {
                Ok(_) => return departs,
                Err(changed) => free_at = changed,
            }
        }
    }

    /// Returns a random number for message `number`: the finalizer of SplitMix64 over a counter, which passes
    /// the usual test batteries (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
    fn random(&self, direction: u64, number: u64, purpose: Purpose) -> u64 {
        let stream = mix(self.seed ^ mix(direction << 8 | purpose as u64));
        mix(stream.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }
}

impl Lane {
    /// Counts a message. Also called directly for ideal cables, which need no model.
    pub fn count(&self, bytes: u64, delivery: Delivery) {
        self.messages.fetch_add(1, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
        match delivery {
            Delivery::Intact => {}
            Delivery::Lost => _ = self.dropped.fetch_add(1, Relaxed),
            Delivery::Corrupted(_) => _ = self.corrupted.fetch_add(1, Relaxed),
        }
    }
}

/// The purpose of a random number. Each has a stream of its own, so one setting does not change the effects
/// of another.
#[derive(Clone, Copy, Debug)]
enum Purpose {
    Jitter,
    Loss,
    Corruption,
    Bit,
}

const fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deliveries(model: &LinkModel, direction: u64, messages: usize) -> Vec<Delivery> {
        let lane = Lane::default();
        // The clock differs from call to call, as between runs.
        (0..messages).map(|at| model.transmit(&lane, direction, 8, at as u64 * 17 % 1000).delivery).collect()
    }

    fn probability(probability: f64) -> Probability {
        Probability::new(probability).expect("a probability")
    }

    #[test]
    fn an_ideal_cable_takes_no_time() {
        let (model, lane) = (LinkModel { seed: 3, ..LinkModel::default() }, Lane::default());
        assert!(model.is_ideal() && !model.is_timed());
        let transmission = model.transmit(&lane, 0, 1 << 30, 77);
        assert_eq!(transmission, Transmission { departs: 77, arrives: 77, delivery: Delivery::Intact });
        assert_eq!((lane.messages.into_inner(), lane.bytes.into_inner()), (1, 1 << 30));
    }

    #[test]
    fn messages_queue_up_behind_each_other() {
        let model = LinkModel { latency_ns: 5000, ps_per_byte: 100, ..LinkModel::default() };
        let lane = Lane::default();
        let bytes = 10_000 - LinkModel::OVERHEAD_BYTES;
        let sent: Vec<u64> = [0, 0, 10_000].map(|now| model.transmit(&lane, 0, bytes, now).departs).to_vec();
        assert_eq!(sent, [1000, 2000, 11_000]);
        assert_eq!(model.transmit(&lane, 0, bytes, 10_000).arrives, 12_000 + 5000);
    }

    #[test]
    fn a_short_message_takes_the_time_of_a_frame_where_frames_travel_whole() {
        let model = LinkModel { ps_per_byte: 1000, frame_bytes: 4096, ..LinkModel::default() };
        let carried = |bytes| model.serialization(bytes).as_nanos() as u64 - LinkModel::OVERHEAD_BYTES;
        assert_eq!([0, 1, 4096, 4097, 16_384].map(carried), [4096, 4096, 4096, 8192, 16_384]);
        assert_eq!(model.serialization(u64::MAX).as_nanos(), u128::from(u64::MAX / 1000), "no overflow");
        let without = LinkModel { frame_bytes: 0, ..model };
        assert_eq!(without.serialization(1).as_nanos() as u64, 1 + LinkModel::OVERHEAD_BYTES);
    }

    #[test]
    fn jitter_stays_within_bounds_and_keeps_the_order() {
        let model = LinkModel { latency_ns: 1000, jitter_ns: 500, seed: 1, ..LinkModel::default() };
        let lane = Lane::default();
        let mut last = 0;
        let mut delays = Vec::new();
        for now in (0..100_000).step_by(1000) {
            let transmission = model.transmit(&lane, 0, 1, now);
            assert!((1000..=1500).contains(&(transmission.arrives - now)), "{transmission:?}");
            delays.push(transmission.arrives - now);
        }
        assert!(delays.iter().any(|d| *d < 1100) && delays.iter().any(|d| *d > 1400), "{delays:?}");
        for now in 100_000..101_000 {
            let arrives = model.transmit(&lane, 0, 1, now).arrives;
            assert!(arrives >= last);
            last = arrives;
        }
    }

    #[test]
    fn fates_are_as_likely_as_they_should_be() {
        let model = LinkModel {
            loss: probability(0.1),
            corruption: probability(0.02),
            seed: 42,
            ..LinkModel::default()
        };
        let deliveries = deliveries(&model, 0, 100_000);
        let lost = deliveries.iter().filter(|delivery| **delivery == Delivery::Lost).count();
        let corrupted =
            deliveries.iter().filter(|delivery| matches!(delivery, Delivery::Corrupted(_))).count();
        // Six standard deviations around 10,000 and around 1,800.
        assert!((9431..=10_569).contains(&lost), "{lost}");
        assert!((1548..=2052).contains(&corrupted), "{corrupted}");
        // Losses are independent: after one, the next is as likely as ever.
        let after: Vec<&Delivery> =
            deliveries.windows(2).filter(|w| w[0] == Delivery::Lost).map(|w| &w[1]).collect();
        let twice = after.iter().filter(|delivery| ***delivery == Delivery::Lost).count();
        assert!(twice.abs_diff(after.len() / 10) < 180, "{twice} of {}", after.len());
    }

    #[test]
    fn fates_repeat_and_depend_on_seed_and_direction() {
        let model = LinkModel {
            loss: probability(0.5),
            corruption: probability(0.5),
            seed: 7,
            ..LinkModel::default()
        };
        assert_eq!(deliveries(&model, 0, 1000), deliveries(&model, 0, 1000));
        assert_ne!(deliveries(&model, 0, 1000), deliveries(&model, 1, 1000));
        assert_ne!(deliveries(&model, 0, 1000), deliveries(&LinkModel { seed: 8, ..model }, 0, 1000));
        // Other settings do not change which messages are lost.
        let lost = |model: &LinkModel| {
            deliveries(model, 0, 1000)
                .into_iter()
                .map(|delivery| delivery == Delivery::Lost)
                .collect::<Vec<_>>()
        };
        assert_eq!(lost(&model), lost(&LinkModel { corruption: Probability::NEVER, jitter_ns: 9, ..model }));
    }

    #[test]
    fn certain_and_impossible_are_exact() {
        assert_eq!(
            (Probability::new(1.1), Probability::new(-0.1), Probability::new(f64::NAN)),
            (None, None, None)
        );
        assert!(probability(1.0).happens(u64::MAX) && !Probability::NEVER.happens(0));
        assert!(probability(0.5).happens(1 << 62) && !probability(0.5).happens(1 << 63));
    }

    #[test]
    fn senders_at_the_same_time_share_the_bandwidth() {
        let model = LinkModel { ps_per_byte: 1000, ..LinkModel::default() };
        let lane = Lane::default();
        let (threads, each) = (4, 1000);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| (0..each).for_each(|_| _ = model.transmit(&lane, 0, 36, 0)));
            }
        });
        assert_eq!(lane.free_at.load(Relaxed), threads * each * 100);
        assert_eq!(lane.next_number.load(Relaxed), threads * each);
    }
}
