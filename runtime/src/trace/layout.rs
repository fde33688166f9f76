//! Threads of the trace viewer on which events are drawn.
//!
//! The layout is that of simulated traces: a process is a rank, thread 0 has local steps, and threads
//! `2p + 1` and `2p + 2` have the messages to and from rank `p`. A real rank may have several messages to a
//! peer under way, which a viewer can't draw on one thread; the second one goes to a thread of its own below
//! the first. Each rail that was down has a thread at the end.

use super::rails::Outage;
use std::collections::BTreeMap;
use topology::Rank;

/// A direction of messages with a peer, or local work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Track {
    Local,
    To(Rank),
    From(Rank),
}

impl Track {
    /// Returns the number of the thread in simulated traces.
    fn thread(self) -> u64 {
        match self {
            Track::Local => 0,
            Track::To(peer) => 2 * u64::from(peer.0) + 1,
            Track::From(peer) => 2 * u64::from(peer.0) + 2,
        }
    }

    fn name(self) -> String {
        match self {
            Track::Local => "calls and local steps".into(),
            Track::To(peer) => format!("to rank {peer}"),
            Track::From(peer) => format!("from rank {peer}"),
        }
    }
}

/// A thread of the viewer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Thread {
    pub(super) number: u64,
    pub(super) name: String,
    /// Position among the threads.
    pub(super) sort_index: u64,
}

/// The threads of one rank, filled in the order of the events' begins.
#[derive(Debug)]
pub(super) struct Threads {
    /// Number of threads of a simulated rank.
    stride: u64,
    /// Per track: the time until which each of its threads is in use.
    used_until: BTreeMap<Track, Vec<u64>>,
}

/// Most threads of a track, for their order in the viewer.
const MOST_THREADS: u64 = 64;

impl Threads {
    pub(super) fn new(ranks: usize) -> Threads {
        Threads { stride: 2 * ranks as u64 + 1, used_until: BTreeMap::new() }
    }

    /// Returns the number of the thread for an event of a track. Local work may be inside of calls, so it
    /// stays on one thread.
    pub(super) fn place(&mut self, track: Track, begin: u64, end: u64) -> u64 {
        let threads = self.used_until.entry(track).or_default();
        let free = if track == Track::Local {
            (!threads.is_empty()).then_some(0)
        } else {
            threads.iter().position(|until| *until <= begin)
        };
        let at = free.unwrap_or_else(|| {
            threads.push(0);
            threads.len() - 1
        });
        threads[at] = threads[at].max(end);
        track.thread() + at as u64 * self.stride
    }

    /// Returns the threads that events were placed on.
    pub(super) fn used(&self) -> impl Iterator<Item = Thread> + '_ {
        self.used_until.iter().flat_map(|(track, threads)| {
            (0..threads.len() as u64).map(|at| Thread {
                number: track.thread() + at * self.stride,
                name: if at == 0 { track.name() } else { format!("{} ({})", track.name(), at + 1) },
                sort_index: track.thread() * MOST_THREADS + at.min(MOST_THREADS - 1),
            })
        })
    }
}

/// Number of the first thread of a rail.
const FIRST_RAIL_THREAD: u64 = 1 << 24;

/// Threads of the rails that were down.
#[derive(Debug, Default)]
pub(super) struct RailThreads {
    /// Number of the thread of each outage.
    pub(super) of_outages: Vec<u64>,
    pub(super) threads: Vec<Thread>,
}

/// Returns a thread for each rail that was down.
pub(super) fn rail_threads(outages: &[Outage]) -> RailThreads {
    let mut found = RailThreads::default();
    for Outage { peer, device, peer_device, .. } in outages {
        let name = format!("rail {device} to {peer_device} of rank {peer}");
        let known = found.threads.iter().find(|thread| thread.name == name);
        let number = known.map_or(FIRST_RAIL_THREAD + found.threads.len() as u64, |thread| thread.number);
        if known.is_none() {
            found.threads.push(Thread { number, name, sort_index: number * MOST_THREADS });
        }
        found.of_outages.push(number);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_under_way_at_the_same_time_are_on_threads_of_their_own() {
        let mut threads = Threads::new(4);
        let to = Track::To(Rank(1));
        assert_eq!(threads.place(to, 10, 20), 3);
        assert_eq!(threads.place(to, 15, 18), 3 + 9);
        assert_eq!(threads.place(to, 18, 25), 3 + 9, "it begins as the other one ends");
        assert_eq!(threads.place(to, 20, 30), 3);
        assert_eq!(threads.place(Track::From(Rank(1)), 15, 18), 4);
        assert_eq!((threads.place(Track::Local, 0, 100), threads.place(Track::Local, 5, 6)), (0, 0));
        let names: Vec<String> = threads.used().map(|thread| thread.name).collect();
        assert_eq!(names, ["calls and local steps", "to rank 1", "to rank 1 (2)", "from rank 1"]);
    }
}
