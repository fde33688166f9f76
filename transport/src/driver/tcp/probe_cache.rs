//! Results of earlier probes of this process, so that further communicators of the same hosts need no probe.
//!
//! ```text
//! open      offers the probes whose cables this host still has         -> their numbers, in `PeerInfo`
//! exchange  all ranks offer the same probe?   yes: `recall` takes its reports, and no rank probes
//!                                             no:  all ranks probe, and `remember` the reports
//! ```
//!
//! `recall` is a function of announcements that all ranks have received, and of a probe that is equal in all
//! processes that took part in it. So all ranks skip the probe, or none does. What a rank has offered it
//! keeps until then, even if the cache is cleared meanwhile.
//!
//! A probe is not offered once an interface of its cables has another number, other addresses, or has lost
//! its carrier since. The connector clears the cache when a path fails, or works again. Where only some ranks
//! offer a probe it is not used, so the rank that knows of a change decides for all.
//!
//! The cache does not tell whether a path works at present: connections over it find that out, and take
//! another route if there is one.

use super::{
    device::Device,
    peer_info::{AnnouncedCable, HeardPath, MAX_PROBES, PeerInfo, RememberedProbe},
};
use std::{
    collections::{BTreeMap, VecDeque},
    net::IpAddr,
    sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError},
};

/// State of the interface of a cable, which changes when the cable may lead elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CableState {
    pub(super) device: Device,
    /// Number of times that the carrier was found or lost, if the system counts that.
    pub(super) carrier_changes: Option<u64>,
}

/// The host of a rank and its cables: names, and addresses with prefix lengths.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Member {
    host: String,
    cables: Vec<(String, Vec<(IpAddr, u8)>)>,
}

impl Member {
    fn new(host: &str, cables: &[AnnouncedCable]) -> Member {
        let addresses = |cable: &AnnouncedCable| {
            cable.addresses.iter().map(|address| (address.ip, address.prefix_bits)).collect()
        };
        let cables = cables.iter().map(|cable| (cable.name.clone(), addresses(cable))).collect();
        Member { host: host.to_owned(), cables }
    }
}

/// Results of a probe; equal in all processes that took part.
#[derive(Debug)]
struct Probe {
    /// Random number of rank 0 of the communicator that probed.
    id: u64,
    members: Vec<Member>,
    /// Paths over which each rank has heard others.
    reports: Vec<Vec<HeardPath>>,
}

/// A probe in which a rank of this process took part.
#[derive(Clone, Debug)]
struct Entry {
    probe: Arc<Probe>,
    rank: u32,
    /// State of this host's cables before the probe.
    cables: Vec<CableState>,
}

/// Probes that a process remembers, for its later communicators. Clones share them.
#[derive(Clone, Debug)]
pub struct ProbeCache(Arc<Mutex<VecDeque<Entry>>>);

impl Default for ProbeCache {
    /// Returns the cache of the process.
    fn default() -> ProbeCache {
        static OF_PROCESS: LazyLock<ProbeCache> = LazyLock::new(ProbeCache::separate);
        OF_PROCESS.clone()
    }
}

impl ProbeCache {
    /// Returns a cache of its own, for a rank that is not on the host of its process.
    #[must_use]
    pub fn separate() -> ProbeCache {
        ProbeCache(Arc::default())
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the probes that hold for a rank with these cables, the newest first.
    pub(super) fn offer(&self, host: &str, cables: &[AnnouncedCable], states: &[CableState]) -> Offer {
        let own = Member::new(host, cables);
        let holds = |entry: &&Entry| {
            entry.cables == states && entry.probe.members.get(entry.rank as usize) == Some(&own)
        };
        Offer(self.lock().iter().rev().filter(holds).cloned().collect())
    }

    /// Remembers the reports of a probe that `rank` took part in.
    pub(super) fn remember(
        &self,
        rank: u32,
        peers: &[PeerInfo],
        reports: &[Vec<HeardPath>],
        states: &[CableState],
    ) {
        let Some(id) = peers.first().map(|first| first.instance) else { return };
        let members: Vec<Member> = peers.iter().map(|peer| Member::new(&peer.host, &peer.cables)).collect();
        let mut entries = self.lock();
        let is_known = |entry: &Entry| {
            entry.probe.id == id && entry.probe.members[entry.rank as usize] == members[rank as usize]
        };
        if entries.iter().any(is_known) {
            // Another rank of this process and host was faster.
            return;
        }
        if entries.len() == MAX_PROBES {
            entries.pop_front();
        }
        let probe = Arc::new(Probe { id, members, reports: reports.to_vec() });
        entries.push_back(Entry { probe, rank, cables: states.to_vec() });
    }

    /// Clears the cache.
    pub(super) fn forget(&self) {
        self.lock().clear();
    }
}

/// Probes that a rank announces, kept until all ranks have announced theirs.
#[derive(Clone, Debug, Default)]
pub(super) struct Offer(Vec<Entry>);

impl Offer {
    /// Returns the announcement.
    pub(super) fn announced(&self) -> Vec<RememberedProbe> {
        self.0.iter().map(|entry| RememberedProbe { id: entry.probe.id, rank: entry.rank }).collect()
    }

    /// Returns the reports of a probe that all ranks have announced, if there is one; on all ranks or on
    /// none.
    pub(super) fn recall(&self, peers: &[PeerInfo]) -> Option<Vec<Vec<HeardPath>>> {
        let candidates = &peers.first()?.probes;
        candidates.iter().find_map(|candidate| {
            let rank_of = |peer: &PeerInfo| {
                peer.probes.iter().find(|probe| probe.id == candidate.id).map(|probe| probe.rank)
            };
            let ranks = peers.iter().map(rank_of).collect::<Option<Vec<u32>>>()?;
            let entry = self.0.iter().find(|entry| entry.probe.id == candidate.id)?;
            reports_of(&entry.probe, &ranks, peers)
        })
    }
}

/// Returns the reports of a probe by the ranks of another communicator. `ranks` are their ranks in the probe.
fn reports_of(probe: &Probe, ranks: &[u32], peers: &[PeerInfo]) -> Option<Vec<Vec<HeardPath>>> {
    let is_same = |(rank, peer): (&u32, &PeerInfo)| {
        probe.members.get(*rank as usize) == Some(&Member::new(&peer.host, &peer.cables))
    };
    if !ranks.iter().zip(peers).all(is_same) {
        return None;
    }
    let mut present: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for (now, then) in (0..).zip(ranks) {
        present.entry(*then).or_default().push(now);
    }
    let report = |rank: &u32| {
        let heard = &probe.reports[*rank as usize];
        let renumbered = heard.iter().flat_map(|path| {
            let peers = present.get(&path.peer).map_or(&[][..], Vec::as_slice);
            peers.iter().map(|peer| HeardPath { peer: *peer, ..*path })
        });
        renumbered.collect()
    };
    Some(ranks.iter().map(report).collect())
}

#[cfg(test)]
mod tests {
    use super::{
        super::peer_info::{AnnouncedAddress, CableEnd},
        *,
    };

    const END: CableEnd = CableEnd { cable: 0, address: 0 };

    fn states(carrier_changes: u64) -> Vec<CableState> {
        let device = Device { name: "en7".to_owned(), index: 3 };
        vec![CableState { device, carrier_changes: Some(carrier_changes) }]
    }

    fn cables(host: u8) -> Vec<AnnouncedCable> {
        let ip = [10, 0, 0, host].into();
        let address = AnnouncedAddress { ip, prefix_bits: 30, tcp_port: 1, udp_port: 2 };
        vec![AnnouncedCable { name: "en7".to_owned(), addresses: vec![address] }]
    }

    /// A process on a host of its own.
    struct Process {
        host: u8,
        cache: ProbeCache,
    }

    impl Process {
        fn offer(&self, carrier_changes: u64) -> Offer {
            self.cache.offer(&self.host.to_string(), &cables(self.host), &states(carrier_changes))
        }
    }

    fn processes(count: u8) -> Vec<Process> {
        (1..=count).map(|host| Process { host, cache: ProbeCache::separate() }).collect()
    }

    /// Returns the announcements of ranks that these processes are, in this order.
    fn announce(processes: &[&Process], instance: u64, offers: &[Offer]) -> Vec<PeerInfo> {
        let info = |(process, offer): (&&Process, &Offer)| {
            let (host, cables) = (process.host.to_string(), cables(process.host));
            let mut info = PeerInfo::new(instance, host, Vec::new(), cables, None);
            info.probes = offer.announced();
            info
        };
        processes.iter().zip(offers).map(info).collect()
    }

    fn heard(peer: u32) -> HeardPath {
        HeardPath { peer, ours: END, theirs: END }
    }

    /// Lets all processes probe; the first two hear each other.
    fn probe(processes: &[&Process], instance: u64) {
        let peers = announce(processes, instance, &vec![Offer::default(); processes.len()]);
        let mut reports = vec![vec![heard(1)], vec![heard(0)]];
        reports.resize(processes.len(), Vec::new());
        for (rank, process) in (0..).zip(processes) {
            process.cache.remember(rank, &peers, &reports, &states(1));
        }
    }

    /// Returns what each rank recalls.
    fn recall(processes: &[&Process], carrier_changes: u64) -> Vec<Option<Vec<Vec<HeardPath>>>> {
        let offers: Vec<Offer> = processes.iter().map(|process| process.offer(carrier_changes)).collect();
        let peers = announce(processes, 77, &offers);
        offers.iter().map(|offer| offer.recall(&peers)).collect()
    }

    #[test]
    fn a_probe_is_recalled_by_some_of_its_processes_under_other_numbers() {
        let all = processes(3);
        let [a, b, c] = &all[..] else { unreachable!() };
        assert_eq!(recall(&[a, b], 1), [None, None]);
        probe(&[a, b, c], 1);
        assert_eq!(recall(&[a, b, c], 1), vec![Some(vec![vec![heard(1)], vec![heard(0)], vec![]]); 3]);
        assert_eq!(recall(&[c, b, a], 1), vec![Some(vec![vec![], vec![heard(2)], vec![heard(1)]]); 3]);
        assert_eq!(recall(&[b, a], 1), vec![Some(vec![vec![heard(1)], vec![heard(0)]]); 2]);
        // Two ranks of one process.
        let twice = vec![vec![heard(1), heard(2)], vec![heard(0)], vec![heard(0)]];
        assert_eq!(recall(&[a, b, b], 1), vec![Some(twice); 3]);
    }

    #[test]
    fn a_process_that_knows_of_a_change_or_was_elsewhere_lets_all_probe() {
        let all = processes(3);
        let [a, b, c] = &all[..] else { unreachable!() };
        probe(&[a, b], 1);
        assert_eq!(recall(&[a, b, c], 1), [None, None, None], "one that took no part");
        assert_eq!(recall(&[a, b], 2), [None, None], "a cable was pulled and put back");
        b.cache.forget();
        assert_eq!(recall(&[a, b], 1), [None, None], "a path has failed");
        probe(&[b, a], 2);
        assert_eq!(recall(&[a, b], 1), vec![Some(vec![vec![heard(1)], vec![heard(0)]]); 2]);
    }

    #[test]
    fn a_probe_that_was_offered_holds_although_it_is_forgotten_meanwhile() {
        let all = processes(2);
        let [a, b] = &all[..] else { unreachable!() };
        probe(&[a, b], 1);
        let offers = [a.offer(1), b.offer(1)];
        let peers = announce(&[a, b], 77, &offers);
        b.cache.forget();
        assert!(offers.iter().all(|offer| offer.recall(&peers).is_some()));
    }

    #[test]
    fn announcements_that_do_not_fit_the_probe_are_not_believed() {
        let all = processes(2);
        let [a, b] = &all[..] else { unreachable!() };
        probe(&[a, b], 1);
        let offers = [a.offer(1), b.offer(1)];
        let peers = announce(&[a, b], 77, &offers);
        let alter: [fn(&mut PeerInfo); 4] = [
            |peer| peer.probes[0].rank = 2,
            |peer| peer.probes[0].rank = 0,
            |peer| peer.host = "3".to_owned(),
            |peer| peer.cables[0].addresses[0].prefix_bits = 29,
        ];
        for alter in alter {
            let mut altered = peers.clone();
            alter(&mut altered[1]);
            assert_eq!(offers.each_ref().map(|offer| offer.recall(&altered)), [None, None], "{altered:?}");
        }
    }

    #[test]
    fn the_newest_probes_are_kept() {
        let all = processes(2);
        let [a, b] = &all[..] else { unreachable!() };
        (1..=MAX_PROBES as u64 + 1).for_each(|instance| probe(&[a, b], instance));
        let ids: Vec<u64> = a.offer(1).announced().iter().map(|probe| probe.id).collect();
        assert_eq!(ids, (2..=MAX_PROBES as u64 + 1).rev().collect::<Vec<_>>());
    }
}
