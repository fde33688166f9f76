//! Which ranks share a host, as far as planners ask.
//!
//! It is a rule and not a list, so that a [`Spec`](crate::Spec) stays small: launchers give hosts their ranks one host
//! after the other, or by turns.

use std::fmt;
use topology::Rank;

/// How ranks are dealt to hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Hosts {
    /// All ranks are on one host, or nothing is known.
    #[default]
    One,
    /// So many ranks that follow each other share a host; the last host may have fewer.
    Blocks(u32),
    /// Ranks go to so many hosts by turns; the first hosts may have one more.
    Turns(u32),
}

impl Hosts {
    /// The number of hosts that `n` ranks are on.
    #[must_use]
    pub const fn count(self, n: u32) -> u32 {
        match self {
            Hosts::One => 1,
            Hosts::Blocks(size) => n.div_ceil(if size == 0 { 1 } else { size }),
            Hosts::Turns(0) => 1,
            Hosts::Turns(hosts) => {
                if hosts < n {
                    hosts
                } else {
                    n
                }
            }
        }
    }

    /// The number of ranks on a host. None has more than host 0.
    #[must_use]
    pub const fn ranks_on(self, host: u32, n: u32) -> u32 {
        let count = self.count(n);
        match self {
            Hosts::One => n,
            Hosts::Blocks(_) if host + 1 == count => n - host * self.block(),
            Hosts::Blocks(_) => self.block(),
            Hosts::Turns(_) => (n - host).div_ceil(count),
        }
    }

    const fn block(self) -> u32 {
        match self {
            Hosts::Blocks(size) if size > 1 => size,
            _ => 1,
        }
    }

    /// The host of a rank, and its number there.
    #[must_use]
    pub const fn place(self, rank: Rank, n: u32) -> (u32, u32) {
        match self {
            Hosts::One => (0, rank.0),
            Hosts::Blocks(_) => (rank.0 / self.block(), rank.0 % self.block()),
            Hosts::Turns(_) => (rank.0 % self.count(n), rank.0 / self.count(n)),
        }
    }

    /// The rank with a number on a host.
    #[must_use]
    pub const fn rank(self, host: u32, number: u32, n: u32) -> Rank {
        Rank(match self {
            Hosts::One => number,
            Hosts::Blocks(_) => host * self.block() + number,
            Hosts::Turns(_) => number * self.count(n) + host,
        })
    }
}

impl fmt::Display for Hosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Hosts::One => f.write_str("one host"),
            Hosts::Blocks(size) => write!(f, "hosts of {size} ranks"),
            Hosts::Turns(hosts) => write!(f, "{hosts} hosts by turns"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_is_on_one_host_and_none_has_more_than_the_first() {
        for n in 1..40 {
            let layouts = (0..45).flat_map(|k| [Hosts::Blocks(k), Hosts::Turns(k)]);
            for hosts in layouts.chain([Hosts::One]) {
                let mut seen = Vec::new();
                for host in 0..hosts.count(n) {
                    assert!((1..=hosts.ranks_on(0, n)).contains(&hosts.ranks_on(host, n)), "{hosts} {n}");
                    for number in 0..hosts.ranks_on(host, n) {
                        let rank = hosts.rank(host, number, n);
                        assert_eq!(hosts.place(rank, n), (host, number), "{hosts} {n}");
                        seen.push(rank.0);
                    }
                }
                seen.sort_unstable();
                assert!(seen.into_iter().eq(0..n), "{hosts} {n}");
            }
        }
    }
}
