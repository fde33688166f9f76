//! Probes of connections: two processes, a device each, and a cable between them.
//!
//! | module | content |
//! |---|---|
//! | `cables` | search for the cables between two ranks |
//! | `end` | queue pairs and memory of one process |
//! | `messages` | lengths, order, completions, early sends, inline data, events |
//! | `queues` | depths, independence, reset, and new connections |
//! | `memory` | placed pieces, late registration, 4 GiB lines, shared pages |
//! | `writes` | remote writes |
//!
//! Both processes run the same probe and agree by messages over TCP. A process that finds a fault reports it
//! and leaves, so that the other one does not wait.
//!
//! The numbers here are those of the driver (docs/verbs.md): slots, receives, pieces.

mod cables;
mod end;
mod memory;
mod messages;
mod queues;
mod writes;

use super::{
    finding::{Finding, Probed, Trouble, check_of},
    message::{Cable, Message},
};
pub(super) use cables::NO_CABLE;
use end::{Device, End};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::time::Duration;
use tbccl::{Communicator, Rank};
use transport::verbs::{DeviceCapabilities, Gid, Library};

/// Name of the probe that leaves a connection idle.
pub(super) const IDLE_PROBE: &str = "idle";
/// Time for which a connection is left idle.
pub(super) const IDLE: Duration = Duration::from_secs(65);
/// Bytes of slots for short and for long messages.
pub(super) const SHORT_BYTES: usize = 4096;
pub(super) const LONG_BYTES: usize = 16_448;
/// Receives of a rail for short and for long messages.
pub(super) const SHORT_RECEIVES: u32 = 160;
pub(super) const LONG_RECEIVES: u32 = 64;

/// A probe of a connection.
#[derive(Debug)]
pub(super) struct Probe {
    pub(super) name: &'static str,
    /// Property that the driver relies on.
    pub(super) relies: &'static str,
    /// Whether it applies to devices of these capabilities.
    applies: fn(&DeviceCapabilities) -> bool,
    /// Runs as one of the two ends; the flag says whether this end sends.
    run: fn(&mut Pair<'_>, bool) -> Probed,
}

/// Whether the device counts in frames.
fn has_frames(capabilities: &DeviceCapabilities) -> bool {
    capabilities.frame_bytes.is_some()
}

/// All probes, in their order.
pub(super) const PROBES: &[Probe] = &[
    Probe {
        name: "lengths",
        relies: "a message of any length arrives whole, and its completion has its length, not that of the \
                 receive",
        applies: |_| true,
        run: messages::lengths,
    },
    Probe {
        name: "order",
        relies: "the k-th send meets the k-th receive, and completions come in the order of posting",
        applies: |_| true,
        run: messages::order,
    },
    Probe {
        name: "signals",
        relies: "the completion of every eighth send frees the entries of those before it, which have none",
        applies: |_| true,
        run: messages::signals,
    },
    Probe {
        name: "early-send",
        relies: "a send waits in the device until its receive is posted",
        applies: has_frames,
        run: messages::early_send,
    },
    Probe {
        name: "inline",
        relies: "memory of an inline send may be overwritten once it is posted",
        applies: |capabilities| capabilities.max_inline > 0,
        run: messages::inline,
    },
    Probe {
        name: "events",
        relies: "an armed completion queue wakes a process that sleeps",
        applies: |capabilities| capabilities.events,
        run: messages::events,
    },
    Probe {
        name: "receive-depth",
        relies: "all receives of a rail are kept at a time and meet their sends: 160 short ones, 64 long \
                 ones",
        applies: |_| true,
        run: queues::receive_depth,
    },
    Probe {
        name: "independent-queues",
        relies: "a send that waits for its receive does not delay other queue pairs",
        applies: has_frames,
        run: queues::independent,
    },
    Probe {
        name: "reset",
        relies: "a queue pair that was failed and reset is dead, and connects again; earlier sends are gone",
        applies: |_| true,
        run: queues::reset,
    },
    Probe {
        name: "gone-peer",
        relies: "posting and polling do no harm when the peer's queue pair is gone",
        applies: |_| true,
        run: queues::gone_peer,
    },
    Probe {
        name: "reconnection",
        relies: "devices can be opened, connected and closed again and again",
        applies: |_| true,
        run: queues::reconnection,
    },
    Probe {
        name: IDLE_PROBE,
        relies: "a connection that was idle for 65 s still works (the driver uses it every 60 s)",
        applies: |_| true,
        run: queues::idle,
    },
    Probe {
        name: "pieces",
        relies: "eight pieces of 128 KiB with their trailers are in flight in both directions, unharmed",
        applies: has_frames,
        run: memory::pieces,
    },
    Probe {
        name: "late-registration",
        relies: "connected queue pairs can use memory that is registered later; not relied on where devices \
                 count in frames",
        applies: |_| true,
        run: memory::late_registration,
    },
    Probe {
        name: "line",
        relies: "memory that ends or begins at a multiple of 4 GiB is read and written in the right place",
        applies: |_| true,
        run: memory::line,
    },
    Probe {
        name: "shared-memory",
        relies: "pages that processes share are read and written as private ones are",
        applies: |_| true,
        run: memory::shared,
    },
    Probe {
        name: "remote-write",
        relies: "the right to write can be changed on a connection; writes arrive whole and in order, \
                 with and without immediate data",
        applies: |capabilities| capabilities.one_sided,
        run: writes::remote_write,
    },
    Probe {
        name: "link-local",
        relies: "connections from the fe80 address work, where the port has no IPv4 address",
        applies: |_| true,
        run: messages::link_local,
    },
];

/// Description of one end, for the other.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Address {
    numbers: Vec<u32>,
    gid: [u8; 16],
    lid: u16,
    mtu: u32,
}

/// The connection between the two processes of a probe, on the side of the cable's one end.
#[derive(Debug)]
struct Pair<'c> {
    comm: &'c mut Communicator,
    library: &'c Library,
    /// Name of the device of this end.
    name: String,
    device: Device,
    quick: bool,
}

/// Runs a probe, or the search for cables, as one of the two ranks.
pub(super) fn run(
    comm: &mut Communicator,
    library: Result<Library, Trouble>,
    name: &str,
    cable: Option<&Cable>,
    (devices, quick): (&[String], bool),
) {
    if comm.rank().0 > 1 {
        return;
    }
    comm.set_timeout(Duration::from_secs(30) + IDLE);
    if name == cables::NAME {
        return cables::run(comm, library, devices);
    }
    let probe = PROBES.iter().find(|probe| probe.name == name);
    let (Some(probe), Some(cable)) = (probe, cable) else { return };
    let probed = library.and_then(|library| both_ways(comm, &library, probe, cable, quick));
    let is_echo = matches!(probed, Err(Trouble::Peer(_)));
    let check = match probed {
        Ok(None) => return,
        Ok(Some(finding)) => check_of(probe.name, probe.relies, Ok(finding)),
        Err(trouble) => check_of(probe.name, probe.relies, Err(trouble)),
    };
    if is_echo { Message::Echo(check) } else { Message::Check(check) }.print();
}

/// Runs a probe in both directions, or in one if it is to be quick. Rank 0 gets the finding; nobody gets one
/// where the probe does not apply.
fn both_ways(
    comm: &mut Communicator,
    library: &Library,
    probe: &Probe,
    cable: &Cable,
    quick: bool,
) -> Result<Option<Finding>, Trouble> {
    let is_left = comm.rank() == Rank(0);
    let name = if is_left { &cable.ours } else { &cable.theirs }.clone();
    super::message::step(format!("opening {name}"));
    let device = Device::open(library, &name, quick)?;
    let mut pair = Pair { comm, library, name, device, quick };
    let applies = (probe.applies)(&pair.device.capabilities);
    if !(pair.swap(&applies)? && applies) {
        return Ok(None);
    }
    let mut text = String::new();
    let mut details = Vec::new();
    for sender in if quick { &[true][..] } else { &[true, false] } {
        let found = (probe.run)(&mut pair, is_left == *sender)?;
        let (theirs, lines) = pair.swap(&(found.text.clone(), found.details.clone()))?;
        if text.is_empty() {
            text =
                [found.text, theirs].into_iter().filter(|one| !one.is_empty()).collect::<Vec<_>>().join("; ");
        }
        details.extend(found.details.into_iter().chain(lines));
    }
    Ok(is_left.then_some(Finding { text, details }))
}

impl Pair<'_> {
    fn peer(&self) -> Rank {
        Rank(1 - self.comm.rank().0)
    }

    /// Exchanges values.
    fn swap<T: Serialize + DeserializeOwned>(&mut self, value: &T) -> Result<T, Trouble> {
        swap(self.comm, value)
    }

    /// Waits until both processes are here.
    fn meet(&mut self) -> Result<(), Trouble> {
        self.swap(&())
    }

    /// Makes an end with private memory and connects its queue pairs.
    fn connected(&mut self, bytes: usize, depths: &[end::Depths]) -> Result<End, Trouble> {
        let end = End::new(&self.device, bytes, depths)?;
        self.connect(&end)?;
        Ok(end)
    }

    /// Connects all queue pairs of an end to those of the peer's.
    fn connect(&mut self, end: &End) -> Result<(), Trouble> {
        self.connect_from(end, self.device.gid)
    }

    /// Connects all queue pairs of an end, from this address.
    fn connect_from(&mut self, end: &End, gid: (u8, Gid)) -> Result<(), Trouble> {
        super::message::step("connecting queue pairs");
        let port = end.device.context.port()?;
        let ours = Address { numbers: end.numbers(), gid: gid.1.0, lid: port.lid, mtu: port.active_mtu.0 };
        let theirs = self.swap(&ours)?;
        for (queue, number) in theirs.numbers.iter().enumerate() {
            end.connect(queue, gid, (*number, Gid(theirs.gid), theirs.lid, theirs.mtu))?;
        }
        // Nothing is sent before both ends are connected.
        self.meet()
    }
}

/// Exchanges values between ranks 0 and 1.
fn swap<T: Serialize + DeserializeOwned>(comm: &mut Communicator, value: &T) -> Result<T, Trouble> {
    let peer = Rank(1 - comm.rank().0);
    let unreadable = |error: serde_json::Error| {
        Trouble::Unknown(format!("the other rank's message can't be read: {error}"), SAME.to_owned())
    };
    let ours = serde_json::to_vec(value).map_err(unreadable)?;
    let (mut len, mut theirs) = ([0u64], Vec::new());
    let mut receive = |comm: &mut Communicator| {
        comm.recv(&mut len, peer)?;
        theirs.resize(len[0] as usize, 0u8);
        comm.recv(&mut theirs, peer)
    };
    let send = |comm: &mut Communicator| {
        comm.send(&[ours.len() as u64], peer)?;
        comm.send(&ours, peer)
    };
    if comm.rank() == Rank(0) {
        send(comm)?;
        receive(comm)?;
    } else {
        receive(comm)?;
        send(comm)?;
    }
    serde_json::from_slice(&theirs).map_err(unreadable)
}

const SAME: &str = "see that all hosts run the same version of tbccl";
