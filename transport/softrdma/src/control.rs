//! Words that all processes of a fabric share: what is wrong with it at the moment, and what has been counted.
//!
//! Faults are injected by a process that takes no part, `softrdma fault`. It changes words here and then
//! increments [`Control::generation`]. Processes that take part look at that one word whenever they post or poll; it
//! is rarely written, so the look costs nothing. When it differs from what they saw last, they read the ports and
//! nodes that concern them, carry out the new [`Command`]s about their own queue pairs, and raise the
//! asynchronous events that follow.
//!
//! Invariants: all zeroes is a fabric in order, so a new file needs no initialisation. A word is written before
//! `changes` is incremented, with release order. Readers accept any value, since a foreign process may have
//! written it. Commands are numbered from 1 and read in order; a process that comes late begins with the next one, and
//! one that slept through more than [`COMMANDS`] of them loses the oldest.

use crate::{
    fabric::{Device, Fabric, GID_TABLE_LEN, GidChange, MAX_CABLES, MAX_NODES, MAX_PORTS, Override},
    link_model::Lane,
};
use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};
use verbs_sys::Gid;

/// A value of [`CableControl::is_unplugged`].
pub(crate) const UNPLUGGED_CRASHING: u32 = 2;

/// Commands that are remembered.
pub const COMMANDS: usize = 64;

/// What all processes of a fabric share, apart from their own queues.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Control {
    /// Counts changes of anything here but counters.
    pub generation: AtomicU32,
    _pad: AtomicU32,
    /// When the first process joined, in nanoseconds of the monotonic clock; 0 before. Late addresses count from it.
    pub started_at: AtomicU64,
    /// How many commands have been numbered: each takes its number here.
    reserved_commands: AtomicU64,
    /// The largest number of a command that was published.
    published_commands: AtomicU64,
    /// Command n lies at n modulo their number.
    commands: [CommandRecord; COMMANDS],
    /// In the order of the fabric file.
    pub nodes: [NodeControl; MAX_NODES],
    /// By [`Device::port`](crate::fabric::Device::port).
    pub ports: [PortControl; MAX_PORTS],
    /// In the order of the fabric file.
    pub cables: [CableControl; MAX_CABLES],
}

/// A node.
#[derive(Debug, Default)]
#[repr(C)]
pub struct NodeControl {
    /// When not 0, processes of this node look dead without being so: their posts are accepted and not carried
    /// out, their polls find nothing, and nothing is delivered to them. Afterwards they go on.
    pub is_stalled: AtomicU32,
}

/// A port.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct PortControl {
    /// 0: as the fabric file says; 1: down; 2: up.
    pub forced_state: AtomicU32,
    /// Counts changes of its addresses: each is an `IBV_EVENT_GID_CHANGE`.
    pub gid_change: AtomicU32,
    /// The IPv4-mapped address: 0: as the fabric file says; 1: not there; 2: there.
    pub gid_state: AtomicU32,
    /// Its place in the table: 0: as the fabric file says; else 1 more than the place.
    pub gid_index: AtomicU32,
    /// The IPv4 address: 0: as the fabric file says.
    pub gid_ipv4: AtomicU32,
    /// Protection domains that processes which crashed have left behind in the kernel.
    pub leaked_pds: AtomicU32,
}

/// A cable.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct CableControl {
    /// When not 0, both of its ports are down and what is on its way is lost. When 2, devices that crash whoever
    /// posts to an unplugged port do so; see [`UnplugBehavior`](crate::profile::UnplugBehavior).
    pub is_unplugged: AtomicU32,
    /// From its first end to its second, and back.
    pub lanes: [Lane; 2],
}

/// Something that happens once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// The queue pair goes to the state ERR as if the device had failed it: what is posted is flushed, and
    /// `IBV_EVENT_QP_FATAL` raised.
    FailQp {
        /// The port of its device.
        port: u32,
        /// Its number; 0 for all of that device.
        qp: u32,
    },
    /// Its completion queues overflow: `IBV_EVENT_CQ_ERR`, and their queue pairs fail.
    OverflowCq {
        /// The port of its device.
        port: u32,
        /// The number of the queue pair; 0 for all of that device.
        qp: u32,
    },
    /// The connection stops working without a word, as after a long time without a message.
    Sleep {
        /// The port of its device.
        port: u32,
        /// The number of the queue pair; 0 for all of that device.
        qp: u32,
    },
}

/// A [`Command`] in shared memory.
#[derive(Debug, Default)]
#[repr(C)]
struct CommandRecord {
    /// Its number, written last; 0 while it is being written.
    number: AtomicU64,
    /// 1: fail a queue pair; 2: overflow a completion queue; 3: put a queue pair to sleep.
    kind: AtomicU32,
    port: AtomicU32,
    qp: AtomicU32,
    _pad: AtomicU32,
}

impl CommandRecord {
    /// What it says, if that is a command.
    fn command(&self) -> Option<Command> {
        let (port, qp) = (self.port.load(Acquire), self.qp.load(Acquire));
        match self.kind.load(Acquire) {
            1 => Some(Command::FailQp { port, qp }),
            2 => Some(Command::OverflowCq { port, qp }),
            3 => Some(Command::Sleep { port, qp }),
            _ => None,
        }
    }
}

impl Control {
    /// The number of the last command that was published: where a process that joins begins to read.
    #[must_use]
    pub fn last_command(&self) -> u64 {
        self.published_commands.load(Acquire)
    }

    /// Publishes a command to all processes.
    pub fn issue(&self, command: Command) {
        let number = self.reserved_commands.fetch_add(1, AcqRel).wrapping_add(1);
        let record = &self.commands[number as usize % COMMANDS];
        let (kind, port, qp) = match command {
            Command::FailQp { port, qp } => (1, port, qp),
            Command::OverflowCq { port, qp } => (2, port, qp),
            Command::Sleep { port, qp } => (3, port, qp),
        };
        record.number.store(0, Release);
        record.kind.store(kind, Release);
        record.port.store(port, Release);
        record.qp.store(qp, Release);
        record.number.store(number, Release);
        self.published_commands.fetch_max(number, AcqRel);
        self.announce();
    }

    /// The commands after the one with that number, and the number to go on from. A command that is being published
    /// ends the list: whoever publishes it will announce it.
    #[must_use]
    pub fn commands_after(&self, seen: u64) -> (Vec<Command>, u64) {
        let last = self.last_command();
        let mut seen = seen.max(last.saturating_sub(COMMANDS as u64));
        let mut commands = Vec::new();
        while seen < last {
            let record = &self.commands[(seen + 1) as usize % COMMANDS];
            let number = record.number.load(Acquire);
            if number <= seen {
                break;
            }
            let command = record.command();
            // When it was replaced while we read, the newer ones are read next time.
            if number == seen + 1 && record.number.load(Acquire) == number {
                commands.extend(command);
            }
            seen += 1;
        }
        (commands, seen)
    }

    /// Says that something has changed.
    pub fn announce(&self) {
        self.generation.fetch_add(1, AcqRel);
    }

    /// Pulls the cable out, or puts it back.
    pub fn set_unplugged(&self, cable: usize, unplugged: bool) {
        self.cables[cable].is_unplugged.store(unplugged.into(), Release);
        self.announce();
    }

    /// Pulls the cable out, and lets devices crash whoever posts to them then.
    pub fn unplug_and_crash(&self, cable: usize) {
        self.cables[cable].is_unplugged.store(UNPLUGGED_CRASHING, Release);
        self.announce();
    }

    /// Leaves behind so many protection domains of crashed processes on a port.
    pub fn leak_pds(&self, port: usize, domains: u32) {
        self.ports[port].leaked_pds.store(domains, Release);
        self.announce();
    }

    /// Takes a port down or up, or leaves it to the fabric file again.
    pub fn force_port(&self, port: usize, state: Override) {
        self.ports[port].forced_state.store(state as u32, Release);
        self.announce();
    }

    /// Stalls the processes of a node, or lets them go on.
    pub fn set_stalled(&self, node: usize, stalled: bool) {
        self.nodes[node].is_stalled.store(stalled.into(), Release);
        self.announce();
    }

    /// Changes the table of addresses of a port.
    pub fn change_gid(&self, port: usize, state: Override, change: GidChange) {
        let words = &self.ports[port];
        words.gid_state.store(state as u32, Release);
        words.gid_index.store(change.index.map_or(0, |index| u32::from(index) + 1), Release);
        words.gid_ipv4.store(change.ipv4.map_or(0, u32::from), Release);
        words.gid_change.fetch_add(1, AcqRel);
        self.announce();
    }

    /// Notes when the fabric came to life, and returns how many nanoseconds ago that was.
    pub fn age(&self, now: u64) -> u64 {
        match self.started_at.compare_exchange(0, now.max(1), AcqRel, Acquire) {
            Ok(_) => 0,
            Err(started_at) => now.saturating_sub(started_at),
        }
    }

    /// Is the port of `device` up, as far as its own end and its cable go?
    #[must_use]
    pub fn is_up(&self, device: &Device) -> bool {
        let plugged =
            device.cable_end.is_some_and(|end| self.cables[end.cable].is_unplugged.load(Acquire) == 0);
        plugged && Override::from_word(self.ports[device.port].forced_state.load(Acquire)).apply(device.is_up)
    }

    /// Is there a link: are the ports at both ends of the cable up?
    #[must_use]
    pub fn has_link(&self, fabric: &Fabric, device: &Device) -> bool {
        self.is_up(device) && fabric.peer(device).is_some_and(|peer| self.is_up(peer))
    }

    /// The addresses of a device's port when the fabric is so many nanoseconds old.
    #[must_use]
    pub fn gids(&self, device: &Device, age: u64) -> [Gid; GID_TABLE_LEN] {
        let words = &self.ports[device.port];
        let index = words.gid_index.load(Acquire).checked_sub(1).and_then(|index| u8::try_from(index).ok());
        let ipv4 = words.gid_ipv4.load(Acquire);
        let change = GidChange { index, ipv4: (ipv4 != 0).then(|| ipv4.into()) };
        device.gids(age, Override::from_word(words.gid_state.load(Relaxed)), change)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{net::Ipv4Addr, path::Path};

    fn new_control() -> Box<Control> {
        Box::new(Control {
            generation: AtomicU32::default(),
            _pad: AtomicU32::default(),
            started_at: AtomicU64::default(),
            reserved_commands: AtomicU64::default(),
            published_commands: AtomicU64::default(),
            commands: std::array::from_fn(|_| CommandRecord::default()),
            nodes: std::array::from_fn(|_| NodeControl::default()),
            ports: std::array::from_fn(|_| PortControl::default()),
            cables: std::array::from_fn(|_| CableControl::default()),
        })
    }

    fn pair() -> Fabric {
        let text = "profile = \"ib\"\n[[node]]\nname = \"a\"\ndevice = [{ name = \"x\" }, { name = \"y\" }]\n\
                    [[cable]]\nends = [\"a/x\", \"a/y\"]\n";
        Fabric::parse(text, Path::new("f.toml")).expect("valid")
    }

    #[test]
    fn commands_are_read_once_and_in_order() {
        let control = new_control();
        let fail = |qp| Command::FailQp { port: 1, qp };
        assert_eq!(control.commands_after(0), (vec![], 0));
        control.issue(fail(7));
        control.issue(Command::OverflowCq { port: 0, qp: 0 });
        let (commands, seen) = control.commands_after(0);
        assert_eq!((commands, seen), (vec![fail(7), Command::OverflowCq { port: 0, qp: 0 }], 2));
        assert_eq!(control.commands_after(2), (vec![], 2));
        assert_eq!(control.generation.load(Relaxed), 2);
        // Who sleeps through more than are remembered gets the newest.
        (0..100).for_each(|qp| control.issue(fail(qp)));
        let (commands, seen) = control.commands_after(2);
        assert_eq!((commands.len(), commands.last(), seen), (COMMANDS, Some(&fail(99)), 102));
    }

    #[test]
    fn several_may_issue_commands_at_once() {
        let control = new_control();
        std::thread::scope(|scope| {
            for port in 0..4 {
                let control = &control;
                scope.spawn(move || (0..16).for_each(|qp| control.issue(Command::FailQp { port, qp })));
            }
            let (mut all, mut seen) = (Vec::new(), 0);
            while seen < 64 {
                let (commands, next) = control.commands_after(seen);
                all.extend(commands);
                seen = next;
            }
            all.sort_by_key(|command| match command {
                Command::FailQp { port, qp }
                | Command::OverflowCq { port, qp }
                | Command::Sleep { port, qp } => (*port, *qp),
            });
            let expected = (0..4).flat_map(|port| (0..16).map(move |qp| Command::FailQp { port, qp }));
            assert_eq!(all, expected.collect::<Vec<_>>());
        });
    }

    #[test]
    fn a_port_is_up_when_all_say_so() {
        let (control, fabric) = (new_control(), pair());
        let is_up = || fabric.devices.iter().map(|device| control.is_up(device)).collect::<Vec<_>>();
        assert_eq!(is_up(), [true, true]);
        control.force_port(1, Override::Off);
        assert_eq!(is_up(), [true, false]);
        control.set_unplugged(0, true);
        control.force_port(1, Override::On);
        assert_eq!(is_up(), [false, false]);
        control.set_unplugged(0, false);
        assert_eq!(is_up(), [true, true]);
        control.force_port(1, Override::Off);
        let links =
            || fabric.devices.iter().map(|device| control.has_link(&fabric, device)).collect::<Vec<_>>();
        assert_eq!((is_up(), links()), (vec![true, false], vec![false, false]));
        control.force_port(1, Override::AsInFile);
        assert_eq!(links(), [true, true]);
        let down = Device { is_up: false, ..fabric.devices[0].clone() };
        assert!(!control.is_up(&down));
    }

    #[test]
    fn addresses_change_with_an_event() {
        let (control, fabric) = (new_control(), pair());
        let device = &fabric.devices[1];
        let mapped = || control.gids(device, 0).map(|gid| gid.to_ipv4());
        assert_eq!(mapped()[1], Some(device.ipv4));
        control.change_gid(1, Override::On, GidChange { index: Some(2), ipv4: Some(Ipv4Addr::LOCALHOST) });
        assert_eq!(mapped(), [None, None, Some(Ipv4Addr::LOCALHOST), None]);
        control.change_gid(1, Override::Off, GidChange::default());
        assert_eq!(mapped(), [None; 4]);
        assert_eq!(control.ports[1].gid_change.load(Relaxed), 2);
    }

    #[test]
    fn the_first_to_ask_sets_the_clock() {
        let control = new_control();
        assert_eq!((control.age(1000), control.age(1500)), (0, 500));
    }
}
