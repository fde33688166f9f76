//! The placement of ranks on hosts, as planners see it.
//!
//! A placement is a rule, not a list, so that a [`Spec`](crate::Spec) stays small: launchers fill hosts one
//! after the other, or deal ranks round robin. [`Hosts::of`] finds the rule of a job's placement. Ranks that
//! follow no rule are planned for as if the placement were unknown.

use std::fmt;
use std::str::FromStr;
use topology::{Cluster, Placement, Rank};

/// The rule by which ranks are placed on hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Hosts {
    /// All ranks are on one host, or nothing is known.
    #[default]
    One,
    /// Consecutive ranks share a host: this many per host; the last host may have fewer.
    Blocks(u32),
    /// Ranks are placed on this many hosts round robin; the first hosts may have one more.
    Turns(u32),
    /// Hosts are filled one after the other, each with its own number of ranks.
    Sizes(Sizes),
}

/// Ranks per host, for hosts of unequal sizes: up to [`Sizes::MAX_HOSTS`] hosts, with up to
/// [`Sizes::MAX_RANKS_PER_HOST`] ranks on each.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Sizes {
    /// Ranks of each host; 0 only behind the last host.
    each: [u8; Sizes::MAX_HOSTS],
}

impl Sizes {
    /// Maximum number of hosts.
    pub const MAX_HOSTS: usize = 32;

    /// Maximum number of ranks on a host.
    pub const MAX_RANKS_PER_HOST: u32 = u8::MAX as u32;

    /// Creates the sizes of hosts with these numbers of ranks. `None` where there are no hosts or too many,
    /// or one has no ranks or too many.
    #[must_use]
    pub fn new(sizes: &[u32]) -> Option<Sizes> {
        let fit = sizes.iter().all(|size| (1..=Sizes::MAX_RANKS_PER_HOST).contains(size));
        if !fit || !(1..=Sizes::MAX_HOSTS).contains(&sizes.len()) {
            return None;
        }
        let mut each = [0; Sizes::MAX_HOSTS];
        each.iter_mut().zip(sizes).for_each(|(place, size)| *place = *size as u8);
        Some(Sizes { each })
    }

    /// Returns the ranks of every host.
    pub fn iter(self) -> impl Iterator<Item = u32> {
        self.each.into_iter().take_while(|size| *size > 0).map(u32::from)
    }

    /// Returns the number of ranks on the hosts before this one.
    fn before(self, host: u32) -> u32 {
        self.iter().take(host as usize).sum()
    }
}

impl fmt::Debug for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl Hosts {
    /// Returns the rule by which ranks are placed, if a rule describes the placement.
    ///
    /// [`Hosts::One`] otherwise, and where each host has one rank: no plan works within hosts then.
    #[must_use]
    pub fn of(placement: &Placement) -> Hosts {
        let n = placement.ranks();
        let host_of: Vec<u32> = (0..n).map(|rank| placement.host_of(Rank(rank)).0).collect();
        let size = |host: u32| host_of.iter().filter(|other| **other == host).count() as u32;
        let sizes: Vec<u32> = (0..placement.hosts()).map(size).collect();
        let rules = [
            Some(Hosts::Blocks(sizes[0])),
            Some(Hosts::Turns(placement.hosts())),
            Sizes::new(&sizes).map(Hosts::Sizes),
        ];
        let holds = |rule: &Hosts| {
            rule.fits(n) && (0..n).all(|rank| rule.place(Rank(rank), n).0 == host_of[rank as usize])
        };
        let rule = rules.into_iter().flatten().find(holds);
        rule.filter(|rule| sizes.len() > 1 && rule.max_per_host(n) > 1).unwrap_or(Hosts::One)
    }

    /// Returns the rule by which the ranks of a cluster are placed.
    #[must_use]
    pub fn of_cluster(cluster: &Cluster) -> Hosts {
        match cluster.ranks_per_host() {
            several if several > 1 && cluster.hosts() > 1 => Hosts::Blocks(several),
            _ => Hosts::One,
        }
    }

    /// Whether the rule can place exactly `n` ranks.
    #[must_use]
    pub fn fits(self, n: u32) -> bool {
        match self {
            Hosts::Sizes(sizes) => sizes.iter().sum::<u32>() == n,
            Hosts::One | Hosts::Blocks(_) | Hosts::Turns(_) => true,
        }
    }

    /// Returns the number of hosts that `n` ranks are on.
    #[must_use]
    pub fn count(self, n: u32) -> u32 {
        match self {
            Hosts::One => 1,
            Hosts::Blocks(_) => n.div_ceil(self.block()),
            Hosts::Turns(hosts) => hosts.clamp(1, n.max(1)),
            Hosts::Sizes(sizes) => sizes.iter().count() as u32,
        }
    }

    /// Returns the number of ranks on a host.
    #[must_use]
    pub fn ranks_on(self, host: u32, n: u32) -> u32 {
        let count = self.count(n);
        match self {
            Hosts::One => n,
            Hosts::Blocks(_) if host + 1 == count => n - host * self.block(),
            Hosts::Blocks(_) => self.block(),
            Hosts::Turns(_) => (n - host).div_ceil(count),
            Hosts::Sizes(sizes) => u32::from(sizes.each[host as usize]),
        }
    }

    /// Returns the number of ranks on the fullest host.
    #[must_use]
    pub fn max_per_host(self, n: u32) -> u32 {
        match self {
            Hosts::Sizes(sizes) => sizes.iter().max().unwrap_or(n),
            Hosts::One | Hosts::Blocks(_) | Hosts::Turns(_) => self.ranks_on(0, n),
        }
    }

    const fn block(self) -> u32 {
        match self {
            Hosts::Blocks(size) if size > 1 => size,
            _ => 1,
        }
    }

    /// Returns the host of a rank, and the rank's number there.
    #[must_use]
    pub fn place(self, rank: Rank, n: u32) -> (u32, u32) {
        match self {
            Hosts::One => (0, rank.0),
            Hosts::Blocks(_) => (rank.0 / self.block(), rank.0 % self.block()),
            Hosts::Turns(_) => (rank.0 % self.count(n), rank.0 / self.count(n)),
            Hosts::Sizes(sizes) => {
                let mut number = rank.0;
                let is_further = |size: &u32| match number.checked_sub(*size) {
                    Some(rest) => {
                        number = rest;
                        true
                    }
                    None => false,
                };
                let host = sizes.iter().take_while(is_further).count() as u32;
                (host, number)
            }
        }
    }

    /// Returns the rank with a number on a host.
    #[must_use]
    pub fn rank(self, host: u32, number: u32, n: u32) -> Rank {
        Rank(match self {
            Hosts::One => number,
            Hosts::Blocks(_) => host * self.block() + number,
            Hosts::Turns(_) => number * self.count(n) + host,
            Hosts::Sizes(sizes) => sizes.before(host) + number,
        })
    }
}

/// Text form: `4` ranks on each host, `3,1` ranks on the first and on the second, or `turns:2` for two hosts
/// round robin.
impl FromStr for Hosts {
    type Err = String;

    fn from_str(text: &str) -> Result<Hosts, String> {
        let number = |text: &str| text.parse::<u32>().ok().filter(|number| *number > 0);
        let read = match text.strip_prefix("turns:") {
            Some(hosts) => number(hosts).map(Hosts::Turns),
            None if text.contains(',') => {
                let sizes: Option<Vec<u32>> = text.split(',').map(number).collect();
                sizes.and_then(|sizes| Sizes::new(&sizes)).map(Hosts::Sizes)
            }
            None => number(text).map(Hosts::Blocks),
        };
        read.ok_or_else(|| {
            format!(
                "ranks per host were expected, e.g. 4 (on each), 3,1 (up to {} hosts of up to {} ranks) or \
                 turns:2 (two \
                 hosts by turns)",
                Sizes::MAX_HOSTS,
                Sizes::MAX_RANKS_PER_HOST
            )
        })
    }
}

impl fmt::Display for Hosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Hosts::One => f.write_str("one host"),
            Hosts::Blocks(size) => write!(f, "hosts of {size} ranks"),
            Hosts::Turns(hosts) => write!(f, "{hosts} hosts by turns"),
            Hosts::Sizes(sizes) => {
                let sizes: Vec<String> = sizes.iter().map(|size| size.to_string()).collect();
                write!(f, "hosts of {} ranks", sizes.join(","))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(each: &[u32]) -> Hosts {
        Hosts::Sizes(Sizes::new(each).expect("few"))
    }

    fn is_sound(hosts: Hosts, n: u32) {
        let mut seen = Vec::new();
        for host in 0..hosts.count(n) {
            assert!((1..=hosts.max_per_host(n)).contains(&hosts.ranks_on(host, n)), "{hosts} {n}");
            for number in 0..hosts.ranks_on(host, n) {
                let rank = hosts.rank(host, number, n);
                assert_eq!(hosts.place(rank, n), (host, number), "{hosts} {n}");
                seen.push(rank.0);
            }
        }
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..n), "{hosts} {n}");
    }

    #[test]
    fn every_rank_is_on_one_host_and_none_has_more_than_the_fullest() {
        for n in 1..40 {
            let layouts = (0..45).flat_map(|k| [Hosts::Blocks(k), Hosts::Turns(k)]);
            layouts.chain([Hosts::One]).for_each(|hosts| is_sound(hosts, n));
        }
        for each in [&[1][..], &[1, 3], &[3, 1, 2], &[255; 16], &[1; 32]] {
            is_sound(sizes(each), each.iter().sum());
        }
    }

    #[test]
    fn the_rule_of_a_placement_is_found_where_there_is_one() {
        let rule = |names: &str| Hosts::of(&Placement::from_hosts(names.chars()).expect("ranks"));
        assert_eq!(rule("aaaa"), Hosts::One);
        assert_eq!(rule("aabb"), Hosts::Blocks(2));
        assert_eq!(rule("bba"), Hosts::Blocks(2));
        assert_eq!(rule("abab"), Hosts::Turns(2));
        assert_eq!(rule("abcab"), Hosts::Turns(3));
        assert_eq!(rule("abc"), Hosts::One, "nobody shares anything");
        assert_eq!(rule("abbbcc"), sizes(&[1, 3, 2]));
        assert_eq!(rule("abba"), Hosts::One, "nobody deals like this");
        let many = (0..40).flat_map(|host| vec![host; 1 + usize::from(host == 1)]);
        assert_eq!(Hosts::of(&Placement::from_hosts(many).expect("ranks")), Hosts::One, "more than fit");
    }

    #[test]
    fn hosts_are_read_as_people_say_them() {
        assert_eq!("4".parse(), Ok(Hosts::Blocks(4)));
        assert_eq!("4,4".parse(), Ok(sizes(&[4, 4])));
        assert_eq!("turns:3".parse(), Ok(Hosts::Turns(3)));
        for text in ["", "0", "1,0", "1,", "-2", "256,1", "turns:", "two"] {
            assert!(text.parse::<Hosts>().is_err_and(|why| why.contains("e.g. 4")), "{text}");
        }
    }

    #[test]
    fn sizes_must_come_to_the_ranks() {
        assert!(sizes(&[3, 1]).fits(4) && !sizes(&[3, 1]).fits(5));
        let spec = crate::Spec::new(crate::Collective::AllReduce, 5).expect("in range");
        let error = spec.with_hosts(sizes(&[3, 1])).expect_err("4 are not 5").to_string();
        assert!(error.contains("hosts of 3,1 ranks are not 5 ranks"), "{error}");
    }
}
