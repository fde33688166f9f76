//! Search for the cables between two ranks: every device with every device, as the driver does.

use super::{
    Address, SHORT_BYTES,
    end::{Device, End, Side},
    messages::intact,
    swap,
};
use crate::commands::selftest::{
    check::Check,
    finding::{REPORT, Trouble, check_of},
    message::{Cable, Message, step},
};
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};
use tbccl::{Communicator, Rank};
use transport::verbs::{Gid, Library, PortState, VerbsError};

/// Advice where no cable is found.
pub(in crate::commands::selftest) const NO_CABLE: &str =
    "connect a second host and name both with --hostfile, or connect two ports of this one";
/// Name of the job.
pub(super) const NAME: &str = "cables";

/// Result of one end for one pair of devices.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Attempt {
    Connected,
    /// The device can't be connected, by its answer.
    Refused(String),
}

/// Finds the cables as one of the two ranks. Rank 0 reports them, with a check for each.
pub(super) fn run(comm: &mut Communicator, library: Result<Library, Trouble>, wanted: &[String]) {
    let found = library.and_then(|library| find(comm, &library, wanted));
    let message = match found {
        Ok(cables) if comm.rank() == Rank(0) => Message::Cables(cables),
        Ok(_) => return,
        Err(trouble @ Trouble::Peer(_)) => Message::Echo(check_of(NAME, "", Err(trouble))),
        Err(trouble) => Message::Check(check_of(NAME, "", Err(trouble))),
    };
    message.print();
}

fn find(comm: &mut Communicator, library: &Library, wanted: &[String]) -> Result<Vec<Cable>, Trouble> {
    let names = usable(library, if comm.rank() == Rank(0) { wanted } else { &[] })?;
    let theirs = swap(comm, &names)?;
    let is_left = comm.rank() == Rank(0);
    let (left, right) = if is_left { (&names, &theirs) } else { (&theirs, &names) };
    let (mut cables, mut longest) = (Vec::new(), Duration::ZERO);
    for ours in left {
        for theirs in right {
            let cable = Cable { ours: ours.clone(), theirs: theirs.clone() };
            let began = Instant::now();
            let check = attempt(comm, library, &cable)?;
            match check {
                Some(check) => {
                    cables.push(cable);
                    if is_left {
                        Message::Check(check).print();
                    }
                }
                None => longest = longest.max(began.elapsed()),
            }
        }
    }
    if is_left {
        Message::Check(summary(left.len() * right.len(), cables.len(), longest)).print();
    }
    Ok(cables)
}

/// Returns the check of the search.
fn summary(tried: usize, found: usize, longest: Duration) -> Check {
    const RELIES: &str = "devices without a cable between them refuse to be connected, within seconds";
    let text = format!(
        "{found} of {tried} pairs of devices are connected by a cable, the longest refusal took {:.3} s",
        longest.as_secs_f64()
    );
    let check = match (found, longest.as_secs() > 5) {
        (0, _) => Check::unknown("search", text, NO_CABLE),
        (_, true) => Check::unknown("search", text, "name the cables in the hostfile: nothing is tried then"),
        _ => Check::pass("search", text),
    };
    check.relying_on(RELIES)
}

/// Returns the devices whose port is active; `wanted` limits them.
fn usable(library: &Library, wanted: &[String]) -> Result<Vec<String>, VerbsError> {
    step("listing devices");
    let mut names: Vec<String> = library.devices()?.into_iter().map(|device| device.name).collect();
    names.retain(|name| wanted.is_empty() || wanted.contains(name));
    names.retain(|name| {
        let port = library.open(name).and_then(|context| context.port());
        port.is_ok_and(|port| port.state == PortState::ACTIVE)
    });
    Ok(names)
}

/// Tries to connect two devices and to exchange messages. Returns nothing if they can't be connected.
fn attempt(comm: &mut Communicator, library: &Library, cable: &Cable) -> Result<Option<Check>, Trouble> {
    let is_left = comm.rank() == Rank(0);
    let name = if is_left { &cable.ours } else { &cable.theirs };
    step(format!("connecting {} of rank 0 and {} of rank 1", cable.ours, cable.theirs));
    let made = Device::open(library, name, true)
        .and_then(|device| Ok((End::new(&device, 2 * SHORT_BYTES, &[(16, 16)])?, device)));
    let address = made.as_ref().ok().map(|(end, device)| Address {
        numbers: end.numbers(),
        gid: device.gid.1.0,
        lid: device.context.port().map_or(0, |port| port.lid),
        mtu: device.context.port().map_or(1, |port| port.active_mtu.0),
    });
    let far = swap(comm, &address)?;
    let began = Instant::now();
    let ours = match (&made, &far) {
        (Ok((end, device)), Some(far)) => {
            let to = (far.numbers[0], Gid(far.gid), far.lid, far.mtu);
            match end.connect(0, device.gid, to) {
                Ok(()) => Attempt::Connected,
                Err(trouble) => Attempt::Refused(format!("{trouble:?}")),
            }
        }
        (Err(trouble), _) => Attempt::Refused(format!("{trouble:?}")),
        (_, None) => Attempt::Refused("the peer's device can't be used".to_owned()),
    };
    let took = began.elapsed().as_secs_f64() * 1e3;
    let theirs = swap(comm, &ours)?;
    let (Attempt::Connected, Attempt::Connected, Ok((mut end, device))) = (ours, theirs, made) else {
        return Ok(None);
    };
    let outcome = exchange(comm, &mut end).map_err(|trouble| format!("{trouble:?}"));
    let theirs = swap(comm, &outcome)?;
    let cable_name = format!("{}--{}", cable.ours, cable.theirs);
    Ok(Some(match outcome.and(theirs) {
        Ok(()) => {
            Check::pass(cable_name, format!("connected from {} in {took:.1} ms, messages pass", device.gid.1))
        }
        Err(why) => Check::fail(cable_name, format!("connected, but messages don't pass: {why}"), REPORT),
    }))
}

/// Sends a message in each direction.
fn exchange(comm: &mut Communicator, end: &mut End) -> Result<(), Trouble> {
    end.receive(0, 1, end.run(0, SHORT_BYTES))?;
    swap(comm, &())?;
    end.fill(SHORT_BYTES, 64, 1 + u64::from(comm.rank().0));
    end.send(0, 2, end.run(SHORT_BYTES, 64))?;
    end.wait(Side::Receives, 1, "a message over a new cable")?;
    end.wait(Side::Sends, 1, "a send over a new cable")?;
    intact(end, 0, (64, 2 - u64::from(comm.rank().0)), "a message over a new cable")
}
