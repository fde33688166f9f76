//! Rails that were down, as far as this rank has seen it.
//!
//! Rails are looked at before runs and in long waits, every few milliseconds at most, so an outage may begin
//! and end later here than on the cable. This module asks no device.

use super::clock::EventClock;
use transport::driver::RailInfo;

/// Least nanoseconds between two looks.
const INTERVAL: u64 = 5_000_000;

/// Maximum number of outages; further ones are not recorded.
const MOST_OUTAGES: usize = 1024;

/// Time in which a rail was down. Times are nanoseconds on the host's monotonic clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Outage {
    pub(super) peer: u32,
    /// Devices at this end and at the peer's.
    pub(super) device: String,
    pub(super) peer_device: String,
    pub(super) begin: u64,
    /// 0 while the rail is down.
    pub(super) end: u64,
}

/// The outages of a rank's rails, the oldest first.
#[derive(Debug)]
pub(super) struct RailLog {
    outages: Vec<Outage>,
    /// Ticks of the clock of events, as `interval`.
    next_look: u64,
    interval: u64,
}

impl RailLog {
    pub(super) fn new(clock: EventClock) -> RailLog {
        RailLog { outages: Vec::new(), next_look: 0, interval: clock.ticks(INTERVAL) }
    }

    /// Whether it is time for a look on the clock of events; the look counts as made.
    pub(super) fn is_due(&mut self, now: u64) -> bool {
        let is_due = now >= self.next_look;
        if is_due {
            self.next_look = now + self.interval;
        }
        is_due
    }

    /// Takes in the state of the rails to a peer.
    pub(super) fn see(&mut self, now: u64, peer: u32, rails: &[RailInfo]) {
        for rail in rails {
            let is_it = |outage: &Outage| {
                outage.end == 0
                    && outage.peer == peer
                    && (&outage.device, &outage.peer_device) == (&rail.ours, &rail.theirs)
            };
            match (self.outages.iter().position(is_it), rail.is_up) {
                (Some(at), true) => self.outages[at].end = now,
                (None, false) if self.outages.len() < MOST_OUTAGES => self.outages.push(Outage {
                    peer,
                    device: rail.ours.clone(),
                    peer_device: rail.theirs.clone(),
                    begin: now,
                    end: 0,
                }),
                _ => {}
            }
        }
    }

    pub(super) fn outages(&self) -> &[Outage] {
        &self.outages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log() -> RailLog {
        RailLog { outages: Vec::new(), next_look: 0, interval: INTERVAL }
    }

    fn rail(ours: &str, is_up: bool) -> RailInfo {
        let theirs = format!("far of {ours}");
        let (ours, gigabits, sent_bytes, received_bytes) = (ours.into(), None, None, None);
        RailInfo { ours, theirs, gigabits, is_thunderbolt: true, is_up, sent_bytes, received_bytes }
    }

    #[test]
    fn an_outage_lasts_from_the_first_look_that_finds_a_rail_down_to_the_first_that_finds_it_up() {
        let mut log = log();
        log.see(1, 7, &[rail("a", true), rail("b", true)]);
        log.see(2, 7, &[rail("a", false), rail("b", true)]);
        log.see(3, 7, &[rail("a", false), rail("b", false)]);
        log.see(4, 7, &[rail("a", true), rail("b", false)]);
        log.see(5, 7, &[rail("a", false), rail("b", false)]);
        log.see(5, 8, &[rail("a", true)]);
        let times: Vec<_> =
            log.outages().iter().map(|o| (o.device.as_str(), o.peer, o.begin, o.end)).collect();
        assert_eq!(times, [("a", 7, 2, 4), ("b", 7, 3, 0), ("a", 7, 5, 0)]);
    }

    #[test]
    fn looks_have_an_interval_and_outages_a_limit() {
        let mut log = log();
        assert!(log.is_due(10) && !log.is_due(10 + INTERVAL - 1) && log.is_due(10 + INTERVAL));
        for now in 0..2 * MOST_OUTAGES as u64 {
            log.see(2 * now, 0, &[rail("a", false)]);
            log.see(2 * now + 1, 0, &[rail("a", true)]);
        }
        assert_eq!(log.outages().len(), MOST_OUTAGES);
    }
}
