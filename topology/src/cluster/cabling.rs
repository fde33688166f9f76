//! Cablings: ways to connect hosts that have a number of ports each.
//!
//! [`cablings`] lists the shapes that are possible for such hosts, and the reasons against the others. Hosts
//! are numbered by their place in the shape. Since rings follow the numbers, grids are offered twice: in rows
//! and columns, and along a line that reverses at the end of every row, so that neighbors in number have a
//! cable. If enough ports are left, every cable is doubled, or more.
//!
//! A cabling has each pair of hosts once, the lower one first, and equally many cables between all its pairs.

use super::{Cluster, IntraHost, Speed, shapes::Cable};

/// Pairs of hosts with cables between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cabling {
    /// Name of the shape, for people.
    pub name: String,
    /// Number of hosts.
    pub hosts: u32,
    /// The pairs with cables, ascending.
    pub pairs: Vec<(u32, u32)>,
    /// Number of cables of each pair.
    pub each: u32,
}

/// A shape that these hosts cannot have, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Impossible {
    /// The shape.
    pub name: String,
    /// The reason.
    pub why: String,
}

/// A cable to plug in: the host and the port of either end, both counted from 0.
pub type Plug = [(u32, u32); 2];

impl Cabling {
    /// Returns the ports that the host with the most cables needs, with one cable per pair.
    fn degree(&self) -> u32 {
        let of = |host| self.pairs.iter().filter(|(a, b)| *a == host || *b == host).count() as u32;
        (0..self.hosts).map(of).max().unwrap_or(0)
    }

    /// Returns the number of cables.
    #[must_use]
    pub fn cables(&self) -> u32 {
        self.pairs.len() as u32 * self.each
    }

    /// Returns every cable, with the lowest free ports.
    #[must_use]
    pub fn plugs(&self) -> Vec<Plug> {
        let mut used = vec![0; self.hosts as usize];
        let mut next = |host: u32| {
            let port = used[host as usize];
            used[host as usize] += 1;
            (host, port)
        };
        let cables = self.pairs.iter().flat_map(|pair| (0..self.each).map(move |_| *pair));
        cables.map(|(a, b)| [next(a), next(b)]).collect()
    }

    /// Returns the cluster of the hosts, with one rank each, and cables of this speed.
    #[must_use]
    pub fn cluster(&self, speed: Speed) -> Cluster {
        let cables: Vec<Cable> =
            self.plugs().iter().map(|[(a, _), (b, _)]| Cable::between(*a, *b, speed)).collect();
        Cluster::bare(self.name.clone(), self.hosts, (1, IntraHost::default())).with_cables(&cables, &[])
    }
}

/// Returns the distinct cablings of `hosts` hosts with `ports` ports each, and the impossible shapes.
#[must_use]
pub fn cablings(hosts: u32, ports: u32) -> (Vec<Cabling>, Vec<Impossible>) {
    let (mut possible, mut impossible): (Vec<Cabling>, Vec<Impossible>) = (Vec::new(), Vec::new());
    for (name, shape) in shapes(hosts) {
        let cabling = shape.map(|pairs| Cabling { name: name.clone(), hosts, pairs: tidy(pairs), each: 1 });
        let fitted = cabling.and_then(|cabling| match cabling.degree() {
            needed if needed > ports => {
                Err(format!("it takes {needed} ports per host, and there are {ports}"))
            }
            needed => Ok(Cabling { each: ports / needed.max(1), ..cabling }),
        });
        match fitted {
            Ok(cabling) if possible.iter().any(|known| known.pairs == cabling.pairs) => {}
            Ok(cabling) => possible.push(cabling),
            Err(why) => impossible.push(Impossible { name, why }),
        }
    }
    (possible, impossible)
}

fn tidy(mut pairs: Vec<(u32, u32)>) -> Vec<(u32, u32)> {
    pairs.iter_mut().for_each(|(a, b)| (*a, *b) = ((*a).min(*b), (*a).max(*b)));
    pairs.sort_unstable();
    pairs.dedup();
    pairs
}

/// A shape: its name, and its pairs or the reason why these hosts cannot have it.
type Shape = (String, Result<Vec<(u32, u32)>, String>);

fn shapes(hosts: u32) -> Vec<Shape> {
    let mesh = (0..hosts).flat_map(|a| (a + 1..hosts).map(move |b| (a, b))).collect();
    let line: Vec<(u32, u32)> = (1..hosts).map(|b| (b - 1, b)).collect();
    let ring = if hosts > 2 {
        Ok(line.iter().copied().chain([(0, hosts - 1)]).collect())
    } else {
        Err("a ring has three hosts at least".to_owned())
    };
    let mut shapes =
        vec![("mesh".to_owned(), Ok(mesh)), ("ring".to_owned(), ring), ("line".to_owned(), Ok(line))];
    if hosts.is_power_of_two() && hosts > 1 {
        let sizes = vec![2; hosts.ilog2() as usize];
        shapes.push(("hypercube".to_owned(), Ok(grid(&sizes, false))));
        shapes.push(("hypercube, round".to_owned(), Ok(grid(&sizes, true))));
    } else {
        shapes.push(("hypercube".to_owned(), Err(format!("{hosts} is no power of two"))));
    }
    let rectangles = factorisations(hosts);
    if rectangles.is_empty() {
        shapes.push(("torus".to_owned(), Err(format!("{hosts} hosts form no rectangle"))));
    }
    for sizes in rectangles {
        let size: Vec<String> = sizes.iter().map(u32::to_string).collect();
        let name = format!("torus {}", size.join("x"));
        shapes.push((name.clone(), Ok(grid(&sizes, false))));
        shapes.push((format!("{name}, round"), Ok(grid(&sizes, true))));
    }
    shapes
}

/// Returns factorizations in two or three dimensions of at least two, an even one first, so that a path
/// through all hosts returns to its start.
fn factorisations(hosts: u32) -> Vec<Vec<u32>> {
    let divisors = |n: u32| (2..=n / 2).filter(move |size| n.is_multiple_of(*size));
    let mut all = Vec::new();
    for a in divisors(hosts) {
        let rest = hosts / a;
        all.push(vec![a, rest]);
        all.extend(divisors(rest).map(|b| vec![a, b, rest / b]));
    }
    for sizes in &mut all {
        sizes.sort_by_key(|size| (size % 2, *size));
    }
    all.sort();
    all.sort_by_key(Vec::len);
    all.dedup();
    all
}

/// Returns the pairs of neighbors of a grid that wraps around in every dimension. Hosts are numbered in rows,
/// or, with `round`, along a line that reverses at the end of every row: the reflected code of mixed bases
/// (F. Gray, US patent 2632058, 1953).
fn grid(sizes: &[u32], round: bool) -> Vec<(u32, u32)> {
    let hosts: u32 = sizes.iter().product();
    let mut number = vec![0; hosts as usize];
    for at in 0..hosts {
        number[place(at, sizes, round) as usize] = at;
    }
    let mut pairs = Vec::new();
    let mut stride = hosts;
    for size in sizes {
        stride /= size;
        for a in 0..hosts {
            let digit = a / stride % size;
            let b = a - digit * stride + (digit + 1) % size * stride;
            pairs.push((number[a as usize], number[b as usize]));
        }
    }
    pairs
}

/// Returns the position of a number, in rows.
fn place(number: u32, sizes: &[u32], round: bool) -> u32 {
    let (mut place, mut prefix) = (0, 0);
    let mut stride: u32 = sizes.iter().product();
    for size in sizes {
        stride /= size;
        let digit = number / stride % size;
        // Every second row runs backwards.
        let turned = if round && prefix % 2 == 1 { size - 1 - digit } else { digit };
        place = place * size + turned;
        prefix = prefix * size + digit;
    }
    place
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(hosts: u32, ports: u32) -> Vec<(String, u32)> {
        cablings(hosts, ports).0.into_iter().map(|cabling| (cabling.name, cabling.each)).collect()
    }

    #[test]
    fn shapes_that_are_the_same_are_offered_once() {
        assert_eq!(names(2, 3), [("mesh".to_owned(), 3)]);
        assert_eq!(names(3, 2), [("mesh".to_owned(), 1), ("line".to_owned(), 1)]);
        let eight: Vec<String> = names(8, 3).into_iter().map(|(name, _)| name).collect();
        assert_eq!(eight[..4], ["ring", "line", "hypercube", "hypercube, round"]);
        // 2 x 2 x 2 is the hypercube.
        assert!(
            eight.contains(&"torus 2x4".to_owned()) && !eight.contains(&"torus 2x2x2".to_owned()),
            "{eight:?}"
        );
    }

    #[test]
    fn what_is_impossible_is_said_why() {
        let (_, impossible) = cablings(5, 3);
        let why =
            |name: &str| impossible.iter().find(|other| other.name == name).map(|other| other.why.as_str());
        assert_eq!(why("mesh"), Some("it takes 4 ports per host, and there are 3"));
        assert_eq!(why("hypercube"), Some("5 is no power of two"));
        assert_eq!(why("torus"), Some("5 hosts form no rectangle"));
        let (possible, impossible) = cablings(3, 1);
        assert!(possible.is_empty() && impossible.len() > 2);
    }

    #[test]
    fn no_port_is_used_twice_and_none_that_is_not_there() {
        for (hosts, ports) in [(2, 3), (4, 4), (5, 3), (8, 6), (12, 4), (16, 8), (27, 6)] {
            for cabling in cablings(hosts, ports).0 {
                let mut ends: Vec<(u32, u32)> = cabling.plugs().concat();
                assert_eq!(ends.len() as u32, 2 * cabling.cables());
                ends.sort_unstable();
                let count = ends.len();
                ends.dedup();
                assert_eq!(ends.len(), count, "{}", cabling.name);
                assert!(ends.iter().all(|(host, port)| *host < hosts && *port < ports), "{}", cabling.name);
            }
        }
    }

    #[test]
    fn round_a_grid_neighbours_in_number_have_a_cable() {
        for sizes in [&[2, 2, 2][..], &[2, 4], &[4, 3], &[2, 3, 3], &[4, 4]] {
            let pairs = tidy(grid(sizes, true));
            let hosts: u32 = sizes.iter().product();
            for a in 0..hosts {
                let b = (a + 1) % hosts;
                assert!(pairs.contains(&(a.min(b), a.max(b))), "{sizes:?}: {a} and {b}");
            }
        }
    }

    #[test]
    fn cables_side_by_side_add_up() {
        let (cablings, _) = cablings(2, 3);
        let cluster = cablings[0].cluster(Speed::new(5.0, 75.0));
        assert_eq!(cluster.links()[0].bytes_per_second, 3.0 * 75.0 * 1.25e8);
    }
}
