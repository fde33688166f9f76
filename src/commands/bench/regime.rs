//! Whether the cores of ranks 0 and 1 are near each other while a row is measured.
//!
//! The cores of a virtual machine may share a cache, or not, and that changes within seconds: everything
//! between two processes then takes up to four times as long. Half a round trip of 8 bytes through shared
//! memory tells which it is. It is taken before and after each measurement, which is repeated when it began
//! or ended in a slower regime than the best one so far, as often as `--tries` allows.
//!
//! Ranks agree on what was taken, since they repeat together.

use super::measure::broadcast_from_0;
use std::time::Instant;
use tbccl::{Communicator, Rank, Result};

/// A hop that takes this many times as long as the shortest one is of another regime. Regimes differ by 2 to
/// 4, and hops of one regime by less than 1.5.
const SLOW: f64 = 1.7;
/// Round trips of a batch, and batches of which the fastest counts.
const ROUND_TRIPS: u32 = 50;
const BATCHES: u32 = 20;

/// The shortest hop between ranks 0 and 1 so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Regime {
    best_us: f64,
}

impl Regime {
    /// Measures the hop. This process may use `cores` cores, before it is bound to its share.
    ///
    /// `None` where ranks 0 and 1 share no memory, or where ranks share cores, so that turns of ranks on a
    /// core count more.
    pub(super) fn new(comm: &mut Communicator, cores: u32) -> Result<Option<Regime>> {
        let hosts: Vec<String> = comm.members().iter().take(2).map(|member| member.host.clone()).collect();
        let share_memory = comm.transport().starts_with("shm") || comm.transport() == "local";
        let mut share_cores = [f64::from(u8::from(comm.size() > cores))];
        broadcast_from_0(comm, &mut share_cores)?;
        if !share_memory || share_cores[0] > 0.0 || hosts.len() < 2 || hosts[0] != hosts[1] {
            return Ok(None);
        }
        Ok(Some(Regime { best_us: hop(comm)? }))
    }

    /// The shortest hop so far, in microseconds.
    pub(super) fn best_us(&self) -> f64 {
        self.best_us
    }

    /// Measures the hop again; returns it in microseconds.
    pub(super) fn take(&mut self, comm: &mut Communicator) -> Result<f64> {
        let us = hop(comm)?;
        self.best_us = self.best_us.min(us);
        Ok(us)
    }

    /// Whether a hop is of a slower regime than the best one so far.
    pub(super) fn is_slow(&self, us: f64) -> bool {
        us > SLOW * self.best_us
    }
}

/// Returns half a round trip of 8 bytes in microseconds, the same on all ranks.
fn hop(comm: &mut Communicator) -> Result<f64> {
    let mut fastest = [f64::INFINITY];
    let mut word = [0u64];
    comm.barrier()?;
    for _ in 0..BATCHES {
        let start = Instant::now();
        for _ in 0..ROUND_TRIPS {
            match comm.rank() {
                Rank(0) => {
                    comm.send(&word, Rank(1))?;
                    comm.recv(&mut word, Rank(1))?;
                }
                Rank(1) => {
                    comm.recv(&mut word, Rank(0))?;
                    comm.send(&word, Rank(0))?;
                }
                _ => {}
            }
        }
        fastest[0] = fastest[0].min(start.elapsed().as_secs_f64() * 1e6 / f64::from(2 * ROUND_TRIPS));
    }
    broadcast_from_0(comm, &mut fastest)?;
    Ok(fastest[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hop_of_another_regime_is_slow_and_one_of_the_same_is_not() {
        let regime = Regime { best_us: 0.1 };
        assert!(!regime.is_slow(0.1) && !regime.is_slow(0.15));
        assert!(regime.is_slow(0.2) && regime.is_slow(0.4));
    }

    #[test]
    fn one_rank_has_no_regime() {
        let mut comms = Communicator::local(1, &tbccl::Config::default()).expect("a communicator");
        assert!(Regime::new(&mut comms[0], 8).expect("no error").is_none());
    }
}
