//! Lane weights: the shares of lanes in every message, by which the pass `stripe` splits messages.

use std::fmt;
use std::str::FromStr;

/// The greatest share of a lane.
pub const MAX_WEIGHT: u8 = 64;

/// The shares of the lanes in every message.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Weights {
    shares: [u8; Weights::MAX_LANES],
    /// Number of lanes in use.
    lanes: u8,
}

impl Weights {
    /// Whole messages on one lane.
    pub const ONE: Weights = Weights { shares: [1, 0, 0, 0], lanes: 1 };

    /// Maximum number of lanes that a message can be split over.
    pub const MAX_LANES: usize = 4;

    /// Creates the weights of lanes, e.g. 3 and 1.
    ///
    /// `None` when there are no lanes or too many, or one has no weight or more than [`MAX_WEIGHT`].
    #[must_use]
    pub fn new(shares: &[u8]) -> Option<Weights> {
        let fit = shares.iter().all(|share| (1..=MAX_WEIGHT).contains(share));
        if !fit || !(1..=Weights::MAX_LANES).contains(&shares.len()) {
            return None;
        }
        let mut weights = Weights { shares: [0; Weights::MAX_LANES], lanes: shares.len() as u8 };
        weights.shares[..shares.len()].copy_from_slice(shares);
        // A single lane has the whole message, of any share.
        Some(if shares.len() == 1 { Weights::ONE } else { weights })
    }

    /// Returns the number of lanes.
    #[must_use]
    pub const fn lanes(self) -> u8 {
        self.lanes
    }

    /// Returns the sum of all shares: the pieces of a chunk.
    #[must_use]
    pub fn sum(self) -> u32 {
        self.shares.iter().copied().map(u32::from).sum()
    }

    /// Returns, for each lane, the sum of the shares of the lanes before it, and its own share.
    pub fn shares(self) -> impl Iterator<Item = (u32, u32)> {
        let own = self.shares.into_iter().take(usize::from(self.lanes)).map(u32::from);
        own.scan(0, |before, share| {
            *before += share;
            Some((*before - share, share))
        })
    }
}

/// Parses the printed form: `3:1`.
impl FromStr for Weights {
    type Err = String;

    fn from_str(text: &str) -> Result<Weights, String> {
        let shares: Result<Vec<u8>, _> = text.split(':').map(str::parse).collect();
        shares.ok().and_then(|shares| Weights::new(&shares)).ok_or_else(|| {
            let most = Weights::MAX_LANES;
            format!("the shares of 1 to {most} lanes were expected, each from 1 to {MAX_WEIGHT}, e.g. 3:1")
        })
    }
}

impl fmt::Display for Weights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shares: Vec<String> = self.shares().map(|(_, share)| share.to_string()).collect();
        f.write_str(&shares.join(":"))
    }
}

impl fmt::Debug for Weights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_read_as_they_are_printed() {
        for text in ["1", "3:1", "1:1:2:64"] {
            assert_eq!(text.parse::<Weights>().expect("shares").to_string(), text);
        }
        for text in ["", "0:1", "1:65", "1:1:1:1:1", "1,1", "-1"] {
            assert!(text.parse::<Weights>().is_err_and(|why| why.contains("e.g. 3:1")), "{text}");
        }
    }
}
