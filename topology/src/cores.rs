//! The cores of a machine, and those to which a rank is bound.
//!
//! The caller reads the cores from the system. Ranks get whole cores, neighbors first, so that ranks with
//! neighboring numbers, which exchange the most data, share a cache.

/// The binding of ranks to cores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bind {
    /// Ranks are not bound.
    #[default]
    None,
    /// Each rank has an equal share of the cores for itself.
    Core,
    /// Each rank may use all cores of one NUMA node, nodes near devices first.
    Numa,
}

/// A core.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Core {
    /// Its socket.
    pub package: u32,
    /// Its NUMA node.
    pub numa: u32,
    /// Its largest shared cache, by the lowest hardware thread that shares it.
    pub cache: u32,
    /// Its hardware threads, as the system numbers them, ascending.
    pub cpus: Vec<u32>,
}

/// The cores that a process may use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cores {
    /// The cores, ordered by socket, NUMA node and cache, so that neighbors are near each other.
    cores: Vec<Core>,
    /// NUMA nodes near the devices through which ranks reach other hosts.
    near_devices: Vec<u32>,
}

impl Cores {
    /// Sorts cores, given in any order.
    #[must_use]
    pub fn new(mut cores: Vec<Core>) -> Cores {
        cores.retain(|core| !core.cpus.is_empty());
        cores.sort();
        Cores { cores, near_devices: Vec::new() }
    }

    /// Adds hardware threads near the devices through which ranks reach other hosts. With [`Bind::Numa`],
    /// ranks get the nodes of these threads before other nodes.
    #[must_use]
    pub fn with_devices_near(mut self, cpus: &[u32]) -> Cores {
        let is_near = |core: &&Core| core.cpus.iter().any(|cpu| cpus.contains(cpu));
        self.near_devices.extend(self.cores.iter().filter(is_near).map(|core| core.numa));
        self
    }

    /// Returns the number of cores.
    #[must_use]
    pub fn len(&self) -> usize {
        self.cores.len()
    }

    /// Whether no cores are known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.cores.is_empty()
    }

    /// Returns the hardware threads for local rank `local_rank` of `local_size`, or `None` if it is not
    /// bound. With fewer cores than ranks, neighbors share a core.
    #[must_use]
    pub fn share(&self, bind: Bind, local_rank: u32, local_size: u32) -> Option<Vec<u32>> {
        let (rank, size) = (local_rank as usize, local_size as usize);
        if size == 0 || rank >= size || self.is_empty() {
            return None;
        }
        let chosen: Vec<&Core> = match bind {
            Bind::None => return None,
            Bind::Core => {
                let each = self.cores.len() / size;
                let first = if each == 0 { rank * self.cores.len() / size } else { rank * each };
                self.cores.iter().skip(first).take(each.max(1)).collect()
            }
            Bind::Numa => {
                let mut nodes: Vec<u32> = self.cores.iter().map(|core| core.numa).collect();
                nodes.sort_unstable_by_key(|node| (!self.near_devices.contains(node), *node));
                nodes.dedup();
                // Neighbors share a node where there are more ranks than nodes.
                let node = nodes[if size <= nodes.len() { rank } else { rank * nodes.len() / size }];
                self.cores.iter().filter(|core| core.numa == node).collect()
            }
        };
        let mut cpus: Vec<u32> = chosen.into_iter().flat_map(|core| core.cpus.iter().copied()).collect();
        cpus.sort_unstable();
        (!cpus.is_empty()).then_some(cpus)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two sockets of two cores of two threads, numbered as Linux does: threads of a core are far apart.
    fn machine() -> Cores {
        let core = |at: u32| Core { package: at / 2, numa: at / 2, cache: 0, cpus: vec![at, at + 4] };
        Cores::new([3, 1, 0, 2].map(core).to_vec())
    }

    #[test]
    fn neighbours_share_a_cache_whatever_the_numbers_of_cores() {
        // Even cores have one cache, odd ones another.
        let core = |at: u32| Core { package: 0, numa: 0, cache: at % 2, cpus: vec![at] };
        let cores = Cores::new((0..8).map(core).collect());
        let shares: Vec<_> = (0..4).map(|rank| cores.share(Bind::Core, rank, 4)).collect();
        assert_eq!(shares, [[0, 2], [4, 6], [1, 3], [5, 7]].map(|cpus| Some(cpus.to_vec())));
    }

    #[test]
    fn ranks_get_whole_cores_of_their_own() {
        let shares: Vec<_> = (0..4).map(|rank| machine().share(Bind::Core, rank, 4)).collect();
        assert_eq!(shares, [0, 1, 2, 3].map(|at| Some(vec![at, at + 4])));
        assert_eq!(machine().share(Bind::Core, 1, 2), Some(vec![2, 3, 6, 7]));
        assert_eq!(machine().share(Bind::Core, 2, 3), Some(vec![2, 6]));
    }

    #[test]
    fn ranks_share_the_cores_near_a_memory() {
        for (rank, cpus) in [(0, [0, 1, 4, 5]), (1, [0, 1, 4, 5]), (2, [2, 3, 6, 7]), (3, [2, 3, 6, 7])] {
            assert_eq!(machine().share(Bind::Numa, rank, 4), Some(cpus.to_vec()));
        }
        assert_eq!(machine().share(Bind::Numa, 1, 2), Some(vec![2, 3, 6, 7]));
        assert_eq!(machine().share(Bind::Numa, 0, 1), Some(vec![0, 1, 4, 5]));
    }

    #[test]
    fn ranks_get_the_memory_near_devices_first() {
        let machine = machine().with_devices_near(&[2, 6]).with_devices_near(&[]);
        assert_eq!(machine.share(Bind::Numa, 0, 1), Some(vec![2, 3, 6, 7]));
        assert_eq!(machine.share(Bind::Numa, 1, 2), Some(vec![0, 1, 4, 5]));
        assert_eq!(machine.share(Bind::Core, 0, 4), Some(vec![0, 4]), "cores stay in their order");
    }

    #[test]
    fn of_more_ranks_than_cores_neighbours_share_one() {
        let shares: Vec<_> = (0..8).map(|rank| machine().share(Bind::Core, rank, 8)).collect();
        assert_eq!(shares, [0, 0, 1, 1, 2, 2, 3, 3].map(|at| Some(vec![at, at + 4])));
        assert_eq!(machine().share(Bind::Core, 4, 5), Some(vec![3, 7]));
    }

    #[test]
    fn who_is_not_to_be_bound_is_free() {
        assert_eq!(machine().share(Bind::None, 0, 1), None);
        assert_eq!(Cores::default().share(Bind::Numa, 0, 1), None);
    }
}
