//! The control block of a fabric: faults, commands and counters that all its processes share.
//!
//! Faults are injected by a process outside the fabric, `softrdma fault`. It changes words here and then
//! increments [`Control::generation`]. The processes of the fabric read that one word whenever they post or
//! poll; it is rarely written, so the read costs nothing. When it differs from the value they saw last, they
//! read the ports and nodes that concern them, execute new [`Command`]s about their own queue pairs, and
//! raise the asynchronous events that follow.
//!
//! Invariants:
//!
//! - All zeroes is a fabric without faults, so a new file needs no initialization.
//! - A word is written before `generation` is incremented, with release order.
//! - Readers accept any value, since a foreign process may have written it.
//! - Commands are numbered from 1 and read in order. A process that joins late begins with the next command,
//!   and one that misses more than [`COMMANDS`] of them loses the oldest.

use crate::{
    fabric::{Device, Fabric, GID_TABLE_LEN, GidChange, MAX_CABLES, MAX_NODES, MAX_PORTS, Override},
    link_model::Lane,
};
use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};
use verbs_sys::Gid;

/// Value of [`CableControl::is_unplugged`] that makes posting crash.
pub(crate) const UNPLUGGED_CRASHING: u32 = 2;

/// Commands that are kept.
pub const COMMANDS: usize = 64;

/// The memory that all processes of a fabric share, apart from their own queues.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Control {
    /// Incremented on every change except those of counters.
    pub generation: AtomicU32,
    _pad: AtomicU32,
    /// Time at which the first process joined, in nanoseconds of the monotonic clock; 0 before. Late
    /// addresses count from it.
    pub started_at: AtomicU64,
    /// Commands that have been numbered. A new command takes its number here.
    reserved_commands: AtomicU64,
    /// The highest number of a published command.
    published_commands: AtomicU64,
    /// Ring of commands: number n lies at index n modulo [`COMMANDS`].
    commands: [CommandRecord; COMMANDS],
    /// Nodes, in the order of the fabric file.
    pub nodes: [NodeControl; MAX_NODES],
    /// Ports, by [`Device::port`].
    pub ports: [PortControl; MAX_PORTS],
    /// Cables, in the order of the fabric file.
    pub cables: [CableControl; MAX_CABLES],
}

/// Faults of a node.
#[derive(Debug, Default)]
#[repr(C)]
pub struct NodeControl {
    /// Nonzero while the node's processes seem dead: posts are accepted but not executed, polls find nothing,
    /// and nothing is delivered. They continue when the word is 0 again.
    pub is_stalled: AtomicU32,
}

/// Faults and address changes of a port.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct PortControl {
    /// Forced port state. 0: as in the fabric file; 1: down; 2: up.
    pub forced_state: AtomicU32,
    /// Incremented on every change of the addresses; each raises `IBV_EVENT_GID_CHANGE`.
    pub gid_change: AtomicU32,
    /// Presence of the IPv4-mapped address. 0: as in the fabric file; 1: absent; 2: present.
    pub gid_state: AtomicU32,
    /// Index of the IPv4-mapped address in the GID table, plus 1; 0: as in the fabric file.
    pub gid_index: AtomicU32,
    /// The IPv4 address; 0: as in the fabric file.
    pub gid_ipv4: AtomicU32,
    /// Protection domains that crashed processes have leaked in the kernel.
    pub leaked_pds: AtomicU32,
}

/// Faults and counters of a cable.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct CableControl {
    /// Nonzero while the cable is unplugged: both of its ports are down, and messages in flight are lost.
    /// When 2, posting to a port of the cable crashes the process if the device's
    /// [`UnplugBehavior`](crate::profile::UnplugBehavior) says so.
    pub is_unplugged: AtomicU32,
    /// The lane from the first end to the second, and the lane back.
    pub lanes: [Lane; 2],
}

/// A fault that happens once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Moves a queue pair to the state ERR as if the device had failed it: posted work is flushed, and
    /// `IBV_EVENT_QP_FATAL` is raised.
    FailQp {
        /// Port of the device.
        port: u32,
        /// Number of the queue pair; 0 for all of the device.
        qp: u32,
    },
    /// Overflows a queue pair's completion queues: `IBV_EVENT_CQ_ERR` is raised, and their queue pairs fail.
    OverflowCq {
        /// Port of the device.
        port: u32,
        /// Number of the queue pair; 0 for all of the device.
        qp: u32,
    },
    /// Stops a connection without an error, as a long idle time does.
    Sleep {
        /// Port of the device.
        port: u32,
        /// Number of the queue pair; 0 for all of the device.
        qp: u32,
    },
}

/// A [`Command`] in shared memory.
#[derive(Debug, Default)]
#[repr(C)]
struct CommandRecord {
    /// Number of the command, written last; 0 while the record is being written.
    number: AtomicU64,
    /// 1: fail a queue pair; 2: overflow a completion queue; 3: stop a connection.
    kind: AtomicU32,
    port: AtomicU32,
    qp: AtomicU32,
    _pad: AtomicU32,
}

impl CommandRecord {
    /// Returns the command, or `None` for an unknown kind.
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
    /// Returns the number of the last published command, after which a process that joins begins to read.
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

    /// Returns the commands after number `seen`, and the number of the last one returned.
    ///
    /// The list ends before a command that is still being written; its writer will call
    /// [`Control::announce`].
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
            // A record that was replaced meanwhile is skipped; the next call returns its successor.
            if number == seen + 1 && record.number.load(Acquire) == number {
                commands.extend(command);
            }
            seen += 1;
        }
        (commands, seen)
    }

    /// Tells all processes that the control block has changed.
    pub fn announce(&self) {
        self.generation.fetch_add(1, AcqRel);
    }

    /// Unplugs a cable, or plugs it in again.
    pub fn set_unplugged(&self, cable: usize, unplugged: bool) {
        self.cables[cable].is_unplugged.store(unplugged.into(), Release);
        self.announce();
    }

    /// Unplugs a cable, and makes devices crash the processes that post to it.
    pub fn unplug_and_crash(&self, cable: usize) {
        self.cables[cable].is_unplugged.store(UNPLUGGED_CRASHING, Release);
        self.announce();
    }

    /// Leaks `domains` protection domains of a port, as crashed processes do.
    pub fn leak_pds(&self, port: usize, domains: u32) {
        self.ports[port].leaked_pds.store(domains, Release);
        self.announce();
    }

    /// Forces a port down or up, or lets the fabric file decide again.
    pub fn force_port(&self, port: usize, state: Override) {
        self.ports[port].forced_state.store(state as u32, Release);
        self.announce();
    }

    /// Stalls the processes of a node, or lets them continue.
    pub fn set_stalled(&self, node: usize, stalled: bool) {
        self.nodes[node].is_stalled.store(stalled.into(), Release);
        self.announce();
    }

    /// Changes the IPv4-mapped address in a port's GID table.
    pub fn change_gid(&self, port: usize, state: Override, change: GidChange) {
        let words = &self.ports[port];
        words.gid_state.store(state as u32, Release);
        words.gid_index.store(change.index.map_or(0, |index| u32::from(index) + 1), Release);
        words.gid_ipv4.store(change.ipv4.map_or(0, u32::from), Release);
        words.gid_change.fetch_add(1, AcqRel);
        self.announce();
    }

    /// Returns the nanoseconds since the first process joined. The first call sets the start.
    pub fn age(&self, now: u64) -> u64 {
        match self.started_at.compare_exchange(0, now.max(1), AcqRel, Acquire) {
            Ok(_) => 0,
            Err(started_at) => now.saturating_sub(started_at),
        }
    }

    /// Whether a device's port is up: its own end and its cable. The far end does not count.
    #[must_use]
    pub fn is_up(&self, device: &Device) -> bool {
        let plugged =
            device.cable_end.is_some_and(|end| self.cables[end.cable].is_unplugged.load(Acquire) == 0);
        plugged && Override::from_word(self.ports[device.port].forced_state.load(Acquire)).apply(device.is_up)
    }

    /// Whether there is a link: the ports at both ends of the cable are up.
    #[must_use]
    pub fn has_link(&self, fabric: &Fabric, device: &Device) -> bool {
        self.is_up(device) && fabric.peer(device).is_some_and(|peer| self.is_up(peer))
    }

    /// Returns the GID table of a device's port, `age` nanoseconds after the first process joined.
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
        // A process that misses more commands than are kept gets the newest.
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
