//! The table of faults: for each kind its name, who injects it, and what it excuses.

use super::settings::Start;
use serde::{Deserialize, Serialize};
use std::{str::FromStr, time::Duration};

/// The process that injects a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Actor {
    /// The process that starts the ranks.
    Driver,
    /// The rank at which the fault aims.
    Rank,
    /// The software devices, by the fabric file.
    Fabric,
}

/// The effect that a fault may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// No call fails.
    None,
    /// Calls may fail with an error that names a culprit. All ranks live.
    Fails,
    /// The culprits end. Calls of others may fail with an error that names a culprit.
    Ends,
    /// All ranks end.
    EndsAll,
    /// Calls may fail with an error that says that the launcher is gone.
    Orphans,
}

/// Duration of a fault, relative to the time limit of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lasting {
    /// A moment.
    Moment,
    /// Less than half of the time limit.
    Short,
    /// Longer than the time limit.
    Long,
    /// Less than the time that ranks wait for a cable.
    Replug,
    /// Until all ranks have reported.
    Lasts,
}

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Kind {
    Kill,
    Leave,
    Pause,
    Stop,
    Slow,
    Busy,
    Away,
    Late,
    Absent,
    Abort,
    Fork,
    Mismatch,
    Descriptors,
    Memory,
    Reset,
    Buffers,
    Launcher,
    Agent,
    Rendezvous,
    Loss,
    Corruption,
    Reorder,
    Bandwidth,
    Unplug,
    Cut,
    Port,
    QueuePair,
    Silence,
    Overflow,
    Stall,
    Address,
}

/// A row of the table.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) kind: Kind,
    pub(super) name: &'static str,
    /// Description, the rest of a sentence.
    pub(super) about: &'static str,
    pub(super) actor: Actor,
    pub(super) effect: Effect,
    lasting: Lasting,
    /// Whether the fault can happen in a round.
    is_possible: fn(&Place) -> bool,
}

/// Properties of a round that make faults possible.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) start: Start,
    pub(super) has_tcp: bool,
    pub(super) has_devices: bool,
    /// Whether the library repeats messages that cables lose or damage.
    pub(super) is_unreliable: bool,
    /// Whether two nodes have more than one cable between them.
    pub(super) has_spare_cables: bool,
}

fn anywhere(_: &Place) -> bool {
    true
}

fn over_tcp(place: &Place) -> bool {
    place.has_tcp
}

fn on_devices(place: &Place) -> bool {
    place.has_devices
}

fn on_unreliable(place: &Place) -> bool {
    place.is_unreliable
}

fn on_several_cables(place: &Place) -> bool {
    place.has_spare_cables
}

macro_rules! table {
    ($(
        $kind:ident $name:literal $actor:ident $effect:ident $lasting:ident ($possible:expr) $about:literal;
    )*) => {
        /// All kinds of faults.
        pub(super) const TABLE: &[Row] = &[$(Row {
            kind: Kind::$kind,
            name: $name,
            about: $about,
            actor: Actor::$actor,
            effect: Effect::$effect,
            lasting: Lasting::$lasting,
            is_possible: $possible,
        }),*];
    };
}

table! {
    Kill "kill" Driver Ends Moment (anywhere) "a rank is killed with SIGKILL";
    Leave "leave" Rank Ends Moment (anywhere) "a rank closes its communicators early and exits";
    Pause "pause" Driver None Short (anywhere) "a rank is stopped for less than the time limit";
    Stop "stop" Driver Fails Long (anywhere) "a rank is stopped for longer than the time limit";
    Slow "slow" Driver None Short (anywhere) "a rank is stopped and continued many times";
    Busy "busy" Rank None Short (anywhere) "a rank computes for less than the time limit, and reads nothing";
    Away "away" Rank Fails Long (anywhere) "a rank computes for longer than the time limit";
    Late "late" Rank None Short (anywhere) "a rank joins late";
    Absent "absent" Rank Fails Long (anywhere) "a rank joins after the time limit";
    Abort "abort" Rank Fails Moment (anywhere) "another thread of a rank aborts a communicator";
    Fork "fork" Rank None Short (anywhere) "a rank forks; the child calls, drops everything, and stays";
    Mismatch "mismatch" Rank Fails Moment (anywhere) "a rank makes another call than the others";
    Descriptors "descriptors" Rank Fails Moment (anywhere) "a rank can't open files or sockets (EMFILE)";
    Memory "memory" Rank Fails Moment (anywhere) "a rank can't map memory (ENOMEM)";
    Reset "reset" Driver Fails Moment (over_tcp) "a connection over TCP is reset";
    Buffers "buffers" Driver None Moment (over_tcp)
        "the socket buffers of a rank are small, and full";
    Launcher "launcher" Driver EndsAll Moment (|place| place.start.has_launcher())
        "the launcher is killed with SIGKILL";
    Agent "agent" Driver Ends Moment (|place| place.start == Start::Hosts)
        "the agent of a host is killed with SIGKILL";
    Rendezvous "rendezvous" Driver Orphans Moment (|place| place.start == Start::Rendezvous)
        "the rendezvous server is killed with SIGKILL";
    Loss "loss" Fabric None Lasts (on_unreliable) "cables lose messages";
    Corruption "corruption" Fabric None Lasts (on_unreliable) "cables flip bits";
    Reorder "reorder" Fabric None Lasts (on_several_cables) "cables between two nodes differ in latency";
    Bandwidth "bandwidth" Fabric None Lasts (on_devices) "cables are slow";
    Unplug "unplug" Driver None Replug (on_devices) "a cable is unplugged and plugged in again";
    Cut "cut" Driver Fails Lasts (on_devices) "a cable is unplugged until all ranks have reported";
    Port "port" Driver None Replug (on_devices) "a port goes down and up again";
    QueuePair "queue-pair" Driver None Moment (on_devices) "the queue pairs of a device fail";
    Silence "silence" Driver None Moment (on_devices) "the connections of a device stop without an error";
    Overflow "overflow" Driver Fails Moment (on_devices) "the completion queues of a device overflow";
    Stall "stall" Driver None Short (on_devices) "the devices of a node do nothing for a while";
    Address "address" Driver None Moment (on_devices) "the address of a port moves in its table";
}

impl Kind {
    /// Returns the row of the kind.
    pub(super) fn row(self) -> &'static Row {
        TABLE.iter().find(|row| row.kind == self).unwrap_or(&TABLE[0])
    }

    pub(super) fn name(self) -> &'static str {
        self.row().name
    }

    /// Whether the fault can happen in a round with these properties.
    pub(super) fn is_possible(self, place: &Place) -> bool {
        (self.row().is_possible)(place)
    }

    /// Whether it happens before ranks make calls.
    pub(super) fn is_before_joining(self) -> bool {
        matches!(self, Kind::Late | Kind::Absent)
    }

    /// Whether it aims at a cable, or at one of its ends.
    pub(super) fn aims_at_cable(self) -> bool {
        use Kind::{Address, Cut, Overflow, Port, QueuePair, Silence, Unplug};
        matches!(self, Unplug | Cut | Port | QueuePair | Silence | Overflow | Address)
    }
}

impl Row {
    /// Returns the duration of the fault; `part` is a random number below 1000, `limit` the time limit of
    /// calls, and `cable_wait` the time that ranks wait for a cable.
    pub(super) fn duration(&self, part: u64, limit: Duration, cable_wait: Duration) -> Duration {
        let part = |of: Duration| of * part as u32 / 1000;
        match self.lasting {
            Lasting::Moment | Lasting::Lasts => Duration::ZERO,
            Lasting::Short => limit / 20 + part(limit * 7 / 20),
            Lasting::Long => limit + Duration::from_millis(700) + part(Duration::from_millis(1500)),
            Lasting::Replug => Duration::from_millis(20) + part(cable_wait / 2),
        }
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Kind, String> {
        let found = TABLE.iter().find(|row| row.name == text).map(|row| row.kind);
        let names = TABLE.iter().map(|row| row.name);
        found.ok_or_else(|| collectives::UnknownName::new("fault", text, names).to_string())
    }
}

/// A fault of a round.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Fault {
    pub(super) kind: Kind,
    /// The rank at which it aims, or at whose step another thing fails.
    pub(super) rank: u32,
    /// The step of that rank at which it is injected.
    pub(super) step: usize,
    /// Time from the beginning of the step to the fault.
    #[serde(skip)]
    pub(super) delay: Duration,
    #[serde(skip)]
    pub(super) lasting: Duration,
    /// The cable, and its end.
    pub(super) cable: usize,
    pub(super) end: usize,
    /// Random number for choices at the time of injection.
    #[serde(skip)]
    pub(super) choice: u64,
}

impl Fault {
    /// Whether the calls of a rank may fail without naming another one, since the fault aims at this rank.
    pub(super) fn blames(&self, rank: u32) -> bool {
        !self.kind.aims_at_cable() && self.kind != Kind::Reset && self.rank == rank
    }
}

/// Returns the text of `--help` about kinds of faults.
pub(super) fn help() -> String {
    let line = |row: &Row| format!("  {:<12} {}\n", row.name, row.about);
    TABLE.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_one_row_and_its_name() {
        for row in TABLE {
            assert_eq!(row.kind.row().name, row.name);
            assert_eq!(row.name.parse(), Ok(row.kind));
            let json = serde_json::to_string(&row.kind).expect("JSON");
            assert_eq!(json, format!("\"{}\"", row.name), "names in JSON are those of the table");
        }
        assert!("kil".parse::<Kind>().is_err_and(|why| why.contains("kill")));
    }
}
