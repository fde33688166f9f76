//! How fast a rail brings pieces, as far as that can be told at its end.
//!
//! Cables between the same two ranks may differ. A piece goes to the rail on which it is expected to arrive first: by what
//! is under way there already, and by the pace of the rail. The time from one arrival to the next, while more is
//! expected, is the rail's doing. The time from a grant on an idle rail to its arrival is also the sender's, who may have
//! had nothing to send yet: it shows that the rail is at least that fast.
//!
//! Pure: told the time, it asks nobody.

use std::time::Instant;

/// Pieces over which the pace is averaged, about.
const MEMORY: f64 = 8.0;
/// The pace of a rail that has not been measured, in bytes per second: about a Thunderbolt 5 cable.
const UNKNOWN: f64 = 8e9;

/// What is under way on a rail, and how fast it comes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    /// Bytes granted that have not come.
    under_way: u64,
    /// When the last piece came, or when one was granted after a pause.
    since: Option<Instant>,
    /// It was a grant.
    after_pause: bool,
    /// Bytes per second; 0 before anything was measured.
    bytes_per_second: f64,
}

impl Pace {
    /// So many bytes are granted.
    pub(super) fn grant(&mut self, bytes: u64, now: Instant) {
        if self.under_way == 0 {
            (self.since, self.after_pause) = (Some(now), true);
        }
        self.under_way += bytes;
    }

    /// So many bytes that were granted won't come.
    pub(super) fn give_up(&mut self, bytes: u64) {
        self.under_way = self.under_way.saturating_sub(bytes);
    }

    /// So many bytes have come.
    pub(super) fn come(&mut self, bytes: u64, now: Instant) {
        self.give_up(bytes);
        if let Some(since) = self.since {
            let seconds = now.saturating_duration_since(since).as_secs_f64().max(1e-9);
            let measured = bytes as f64 / seconds;
            if !self.after_pause && self.bytes_per_second > 0.0 {
                self.bytes_per_second += (measured - self.bytes_per_second) / MEMORY;
            } else {
                self.bytes_per_second = self.bytes_per_second.max(measured);
            }
        }
        (self.since, self.after_pause) = (Some(now), false);
    }

    /// The rail begins anew; nothing is under way. Its cable is the same.
    pub(super) fn restart(&mut self) {
        self.under_way = 0;
        self.since = None;
    }

    /// When a piece of so many bytes that is granted now will have come, in nanoseconds from now, if the pace lasts.
    pub(super) fn arrival_ns(&self, bytes: u64) -> u64 {
        let pace = if self.bytes_per_second > 0.0 { self.bytes_per_second } else { UNKNOWN };
        ((self.under_way + bytes) as f64 / pace * 1e9) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const PIECE: u64 = 128 << 10;

    /// Grants pieces to two rails of these paces for a while; how many each got.
    fn shares(paces: [f64; 2]) -> [u64; 2] {
        let mut now = Instant::now();
        let mut rails = [Pace::default(); 2];
        let mut queued = [0u64; 2];
        let mut due = [None::<Instant>; 2];
        let mut got = [0; 2];
        for _ in 0..4000 {
            while queued[0] + queued[1] < 8 {
                let to = usize::from(rails[1].arrival_ns(PIECE) < rails[0].arrival_ns(PIECE));
                rails[to].grant(PIECE, now);
                queued[to] += 1;
            }
            for rail in 0..2 {
                if queued[rail] > 0 && due[rail].is_none() {
                    due[rail] = Some(now + Duration::from_secs_f64(PIECE as f64 / paces[rail]));
                }
            }
            let first_is_next = due[1].is_none() || due[0].is_some_and(|first| Some(first) <= due[1]);
            let next = usize::from(!first_is_next);
            now = due[next].take().expect("something is under way");
            queued[next] -= 1;
            got[next] += 1;
            rails[next].come(PIECE, now);
        }
        got
    }

    #[test]
    fn cables_share_pieces_by_their_pace() {
        for (paces, least, most) in
            [([1e9, 1e9], 0.45, 0.55), ([2.5e8, 1e9], 0.15, 0.25), ([1e9, 2e8], 0.78, 0.9)]
        {
            let [a, b] = shares(paces);
            let share = a as f64 / (a + b) as f64;
            assert!((least..=most).contains(&share), "{paces:?}: {share}");
        }
    }

    #[test]
    fn a_silence_is_not_taken_for_slowness() {
        let mut rail = Pace::default();
        let begin = Instant::now();
        rail.grant(2 * PIECE, begin);
        rail.come(PIECE, begin + Duration::from_micros(100));
        rail.come(PIECE, begin + Duration::from_micros(200));
        let pace = rail.arrival_ns(PIECE);
        rail.grant(PIECE, begin + Duration::from_micros(300));
        rail.come(PIECE, begin + Duration::from_secs(5));
        assert_eq!(rail.arrival_ns(PIECE), pace);
    }
}
