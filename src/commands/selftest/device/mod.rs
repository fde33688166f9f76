//! Probes of one device: its port, its addresses, and each of its limits.
//!
//! | module | probes |
//! |---|---|
//! | `identity` | attributes, port, addresses, capabilities |
//! | `queues` | queue pairs and completion queues |
//! | `registration` | regions, and kinds and sizes of memory |
//! | `cycles` | opening and closing again and again |
//!
//! A probe runs in a process of its own, uses one device, connects nothing, and gives back what it takes.

mod cycles;
mod identity;
mod queues;
mod registration;

use super::{
    finding::{Finding, Probed, Trouble, check_of},
    message::Message,
};
use transport::verbs::{DeviceCapabilities, Domain, Library};

/// A probe of a device.
#[derive(Debug)]
pub(super) struct Probe {
    pub(super) name: &'static str,
    /// Property that the driver relies on.
    pub(super) relies: &'static str,
    run: fn(&Library, &str, bool) -> Probed,
}

/// All probes, in their order.
pub(super) const PROBES: &[Probe] = &[
    Probe {
        name: "attributes",
        relies: "the device opens and reports its limits",
        run: identity::attributes,
    },
    Probe { name: "port", relies: "the port of a cable is ACTIVE", run: identity::port },
    Probe {
        name: "port-queries",
        relies: "the port's state and pending events can be asked for every 20 ms, without waiting",
        run: identity::port_queries,
    },
    Probe {
        name: "gid",
        relies: "the port's table has an IPv4-mapped GID, wherever it stands",
        run: identity::gid,
    },
    Probe {
        name: "capabilities",
        relies: "the device has UC or RC queue pairs, and registers memory",
        run: identity::capabilities,
    },
    Probe {
        name: "queue-pairs",
        relies: "as many queue pairs exist as are counted on (10 on Apple's device), one too many is \
                 refused, and closed ones come back",
        run: queues::pairs,
    },
    Probe {
        name: "depths",
        relies: "queue pairs and completion queues get the depths that a rail needs",
        run: queues::depths,
    },
    Probe {
        name: "empty-polls",
        relies: "polling an empty queue returns at once, and reports nothing",
        run: queues::empty_polls,
    },
    Probe {
        name: "receives-before-connection",
        relies: "receives may be posted before the queue pair is connected, all that a rail has",
        run: queues::early_receives,
    },
    Probe {
        name: "regions",
        relies: "as many regions exist as are counted on (100 on Apple's device), one too many is refused, \
                 and closed ones come back",
        run: registration::regions,
    },
    Probe {
        name: "registration",
        relies: "private and shared pages register in segments of 1 MiB to 256 MiB, up to 4 GiB lines",
        run: registration::kinds,
    },
    Probe {
        name: "reopening",
        relies: "a device can be opened, used and closed again and again without losing resources",
        run: cycles::reopening,
    },
];

/// Runs a probe as the process that was started for it.
pub(super) fn run(library: &Library, name: &str, device: &str, quick: bool) {
    let Some(probe) = PROBES.iter().find(|probe| probe.name == name) else { return };
    Message::Check(check_of(probe.name, probe.relies, (probe.run)(library, device, quick))).print();
}

/// Opens a device; returns a domain, and its capabilities.
fn open(library: &Library, device: &str) -> Result<(Domain, DeviceCapabilities), Trouble> {
    super::message::step("opening the device");
    let context = library.open(device)?;
    super::message::step("making a protection domain");
    let domain = context.domain()?;
    super::message::step("asking for its capabilities");
    let capabilities = DeviceCapabilities::probe(&context, &domain)?;
    Ok((domain, capabilities))
}

/// Returns the number of a limit that is tried: all of small ones, a part of large ones.
fn tried(limit: u32, quick: bool) -> u32 {
    limit.min(if quick { 128 } else { 512 })
}

/// Returns a finding with further lines.
fn finding(text: String, details: Vec<String>) -> Probed {
    Ok(Finding { text, details })
}
