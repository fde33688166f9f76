//! The graph of hosts and cables, and the order of hosts in which rings follow cables.
//!
//! It is made from a device matrix, whose ranks are hosts here. The k-th device of one host that leads to
//! another and the k-th of that other that leads back are the two ends of a rail.
//!
//! A wiring is what a file describes; this module does not check which cables are plugged in.

use crate::{DeviceMatrix, HostIndex, Rank, Reach};

/// One end of a cable.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Port {
    /// The host that has it.
    pub host: HostIndex,
    /// Its device.
    pub device: String,
}

/// A cable, or a way through a switch, between two hosts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Rail {
    /// The end at the host with the lower number.
    pub low: Port,
    /// The other end.
    pub high: Port,
}

/// Hosts and the rails between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wiring {
    hosts: u32,
    /// By the hosts at their ends, ascending.
    rails: Vec<Rail>,
    /// How many rails there are between two hosts: a row for each host.
    widths: Vec<u32>,
}

/// Most steps of a search for a ring. A ring of a mesh or of one cable per hop is found in far fewer.
const MAX_SEARCH_STEPS: u32 = 200_000;

impl Wiring {
    /// Reads a matrix with a row for each host.
    #[must_use]
    pub fn from_matrix(matrix: &DeviceMatrix) -> Wiring {
        let hosts = matrix.ranks();
        let mut rails = Vec::new();
        let mut widths = vec![0; (hosts * hosts) as usize];
        for a in 0..hosts {
            for b in a + 1..hosts {
                let ends = matrix.rails(Rank(a), Rank(b)).iter().zip(matrix.rails(Rank(b), Rank(a)));
                rails.extend(ends.map(|(low, high)| Rail {
                    low: Port { host: HostIndex(a), device: low.clone() },
                    high: Port { host: HostIndex(b), device: high.clone() },
                }));
                let width = matrix.rails(Rank(a), Rank(b)).len() as u32;
                widths[(a * hosts + b) as usize] = width;
                widths[(b * hosts + a) as usize] = width;
            }
        }
        Wiring { hosts, rails, widths }
    }

    /// The number of hosts.
    #[must_use]
    pub fn hosts(&self) -> u32 {
        self.hosts
    }

    /// All rails.
    #[must_use]
    pub fn rails(&self) -> &[Rail] {
        &self.rails
    }

    /// How many rails connect two hosts. Panics for a host that is none of these.
    #[must_use]
    pub fn width(&self, a: HostIndex, b: HostIndex) -> u32 {
        assert!(a.0 < self.hosts && b.0 < self.hosts, "host {} or {} of {}", a.0, b.0, self.hosts);
        self.widths[(a.0 * self.hosts + b.0) as usize]
    }

    /// Which hosts reach each other, as ranks of a job with one rank per host.
    #[must_use]
    pub fn reach(&self) -> Reach {
        Reach::new(self.hosts, |a, b| self.width(HostIndex(a.0), HostIndex(b.0)) > 0)
    }

    /// Returns the number of rails of the narrowest hop of a ring in this order; 0 where two neighbors have
    /// none.
    #[must_use]
    pub fn ring_width(&self, order: &[u32]) -> u32 {
        let next = order.iter().cycle().skip(1);
        let hops = order.iter().zip(next).filter(|(a, b)| a != b);
        hops.map(|(a, b)| self.width(HostIndex(*a), HostIndex(*b))).min().unwrap_or(0)
    }

    /// Returns an order of the hosts in which each is connected to the next, and the last to the first. Of
    /// all such orders it is one whose narrowest hop is widest, and the given order if that is one. `None`
    /// where the cables allow no ring, or the search finds none within its limit.
    #[must_use]
    pub fn ring_order(&self) -> Option<Vec<u32>> {
        let as_it_is: Vec<u32> = (0..self.hosts).collect();
        if self.hosts < 2 {
            return Some(as_it_is);
        }
        let widest = self.widths.iter().copied().max().unwrap_or(0);
        (1..=widest).rev().find_map(|width| {
            if self.ring_width(&as_it_is) >= width {
                return Some(as_it_is.clone());
            }
            let mut search = Search { wiring: self, width, path: vec![0], steps_left: MAX_SEARCH_STEPS };
            search.find_ring().then_some(search.path)
        })
    }
}

/// A search for a ring, by going on and coming back.
struct Search<'a> {
    wiring: &'a Wiring,
    /// The fewest rails that a hop may have.
    width: u32,
    /// The hosts so far; begins with host 0.
    path: Vec<u32>,
    /// Steps that are left.
    steps_left: u32,
}

impl Search<'_> {
    fn connects(&self, a: u32, b: u32) -> bool {
        a != b && self.wiring.width(HostIndex(a), HostIndex(b)) >= self.width
    }

    /// Hosts that can follow a host.
    fn candidates(&self, from: u32) -> Vec<u32> {
        (0..self.wiring.hosts).filter(|to| self.connects(from, *to) && !self.path.contains(to)).collect()
    }

    fn find_ring(&mut self) -> bool {
        let here = *self.path.last().unwrap_or(&0);
        if self.path.len() == self.wiring.hosts as usize {
            return self.connects(here, self.path[0]);
        }
        // The host with the fewest open neighbors goes first, since it would be cut off first.
        let mut candidates = self.candidates(here);
        candidates.sort_by_key(|to| self.candidates(*to).len());
        for to in candidates {
            if self.steps_left == 0 {
                return false;
            }
            self.steps_left -= 1;
            self.path.push(to);
            if self.find_ring() {
                return true;
            }
            self.path.pop();
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Hosts with cables between these.
    fn wired(hosts: u32, cables: &[(u32, u32)]) -> Wiring {
        let mut rows = vec![vec![Vec::new(); hosts as usize]; hosts as usize];
        for (k, (a, b)) in cables.iter().enumerate() {
            rows[*a as usize][*b as usize].push(format!("en{k}"));
            rows[*b as usize][*a as usize].push(format!("en{k}"));
        }
        Wiring::from_matrix(&DeviceMatrix::from_rows(rows).expect("a matrix"))
    }

    #[test]
    fn rails_have_two_ends() {
        let wiring = wired(3, &[(0, 1), (1, 0), (1, 2)]);
        assert_eq!((wiring.hosts(), wiring.rails().len()), (3, 3));
        assert_eq!(wiring.width(HostIndex(1), HostIndex(0)), 2);
        let last = &wiring.rails()[2];
        assert_eq!(
            (last.low.host, last.high.host, last.high.device.as_str()),
            (HostIndex(1), HostIndex(2), "en2")
        );
        assert!(wiring.reach().connects(Rank(0), Rank(1)) && !wiring.reach().connects(Rank(0), Rank(2)));
    }

    #[test]
    fn an_order_that_is_a_ring_stays() {
        assert_eq!(wired(4, &[(0, 1), (1, 2), (2, 3), (3, 0)]).ring_order(), Some(vec![0, 1, 2, 3]));
        assert_eq!(wired(2, &[(0, 1)]).ring_order(), Some(vec![0, 1]));
        assert_eq!(wired(1, &[]).ring_order(), Some(vec![0]));
    }

    #[test]
    fn another_order_follows_the_cables() {
        let wiring = wired(5, &[(0, 2), (2, 4), (4, 1), (1, 3), (3, 0)]);
        let order = wiring.ring_order().expect("a ring");
        assert!(wiring.ring_width(&order) == 1 && order[0] == 0, "{order:?}");
    }

    #[test]
    fn of_two_rings_the_wider_is_taken() {
        let mesh = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)];
        let doubled = [(0, 2), (2, 1), (1, 3), (3, 0)];
        let wiring = wired(4, &[mesh.as_slice(), &doubled].concat());
        let order = wiring.ring_order().expect("a ring");
        assert_eq!((wiring.ring_width(&[0, 1, 2, 3]), wiring.ring_width(&order)), (1, 2));
    }

    #[test]
    fn a_chain_and_a_star_are_no_rings() {
        assert_eq!(wired(3, &[(0, 1), (1, 2)]).ring_order(), None);
        assert_eq!(wired(4, &[(0, 1), (0, 2), (0, 3)]).ring_order(), None);
        assert_eq!(wired(2, &[]).ring_order(), None);
    }

    proptest! {
        #[test]
        fn a_ring_is_found_however_hosts_are_numbered(
            hosts in 3u32..24,
            seed in any::<u64>(),
            more in proptest::collection::vec((0u32..24, 0u32..24), 0..20),
        ) {
            let mut order: Vec<u32> = (0..hosts).collect();
            let mut state = seed | 1;
            for at in (1..order.len()).rev() {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                order.swap(at, (state >> 33) as usize % (at + 1));
            }
            let ring = (0..hosts as usize).map(|at| (order[at], order[(at + 1) % hosts as usize]));
            let more = more.into_iter().filter(|(a, b)| a != b && *a < hosts && *b < hosts);
            let wiring = wired(hosts, &ring.chain(more).collect::<Vec<_>>());
            let found = wiring.ring_order().expect("there is one");
            let mut sorted = found.clone();
            sorted.sort_unstable();
            prop_assert_eq!(sorted, (0..hosts).collect::<Vec<_>>());
            prop_assert!(wiring.ring_width(&found) >= 1);
        }
    }
}
