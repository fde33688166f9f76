//! Queries of all devices of a library.
//!
//! A driver that hangs, as on Macs after crashes, must not hang the command: a thread queries, and the
//! command waits for it with a time limit.

use super::Failed;
use std::{
    process::Command,
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    thread,
    time::Duration,
};
use transport::verbs::{
    Cause, Context, DeviceCapabilities, DeviceInfo, Gid, Library, PortAttr, QpType, VerbsError, find_gid,
    gigabits,
};

/// How long one device may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The result of the queries.
#[derive(Debug)]
pub(super) struct Answer {
    /// As the library was loaded.
    pub(super) library: String,
    pub(super) devices: Vec<Device>,
    /// Why there is none, if there is none.
    pub(super) nothing: Option<String>,
}

/// A device. Values that could not be queried are missing, and `problems` gives the reasons.
#[derive(Clone, Debug)]
pub(super) struct Device {
    pub(super) info: DeviceInfo,
    pub(super) port: Option<Port>,
    /// The address that connections will be made from, and its place.
    pub(super) gid: Option<(u8, Gid)>,
    pub(super) gids: Vec<(u8, Gid)>,
    pub(super) abilities: Option<DeviceCapabilities>,
    /// One line each.
    pub(super) problems: Vec<String>,
}

/// The properties of a port.
#[derive(Clone, Copy, Debug)]
pub(super) struct Port {
    pub(super) state: &'static str,
    /// Bytes.
    pub(super) mtu: Option<u32>,
    pub(super) gigabits: Option<f64>,
}

/// Looks at all devices.
pub(super) fn around(library: &Library) -> Result<Answer, Failed> {
    let (tell, hear) = channel();
    let looking = library.clone();
    let began = thread::Builder::new().name("devices".into()).spawn(move || look(&looking, &tell));
    began.map_err(Failed::new)?;
    let Ok(listed) = hear.recv_timeout(PATIENCE) else {
        return Err(Failed::new(format_args!("{}: listing devices: {}", library.name(), no_answer())));
    };
    let infos = match listed {
        Told::Listed(listed) => listed.map_err(Failed::new)?,
        Told::Seen(_) => Vec::new(),
    };
    let nothing = infos.is_empty().then(|| library.no_devices(is_enabled()).to_string());
    let devices = collect(infos, &hear);
    Ok(Answer { library: library.name().to_owned(), devices, nothing })
}

/// The thread's messages, in this order.
enum Told {
    Listed(Result<Vec<DeviceInfo>, VerbsError>),
    Seen(Box<Device>),
}

/// Returns the devices in their order, including those that do not answer. After the first of these no other
/// is queried.
fn collect(infos: Vec<DeviceInfo>, hear: &Receiver<Told>) -> Vec<Device> {
    let mut is_stuck = false;
    let mut next = |info: DeviceInfo| {
        let name = info.name.clone();
        let silent = |why: String| Device {
            info,
            port: None,
            gid: None,
            gids: Vec::new(),
            abilities: None,
            problems: vec![format!("{name}: {why}")],
        };
        if is_stuck {
            return silent("not looked at, because the one before does not answer".into());
        }
        match hear.recv_timeout(PATIENCE) {
            Ok(Told::Seen(device)) => *device,
            Err(RecvTimeoutError::Timeout) => {
                is_stuck = true;
                silent(no_answer())
            }
            Ok(Told::Listed(_)) | Err(RecvTimeoutError::Disconnected) => silent("not looked at".into()),
        }
    };
    infos.into_iter().map(&mut next).collect()
}

fn no_answer() -> String {
    let seconds = PATIENCE.as_secs();
    format!(
        "no answer for {seconds} s; the driver hangs, which crashes can leave behind: restart the machine"
    )
}

fn look(library: &Library, tell: &Sender<Told>) {
    let listed = library.devices();
    let infos = listed.clone().unwrap_or_default();
    if tell.send(Told::Listed(listed)).is_err() {
        return;
    }
    for info in infos {
        // Nobody listens any more when the command has ended.
        if tell.send(Told::Seen(Box::new(look_at(library, info)))).is_err() {
            return;
        }
    }
}

fn look_at(library: &Library, info: DeviceInfo) -> Device {
    let mut device =
        Device { info, port: None, gid: None, gids: Vec::new(), abilities: None, problems: Vec::new() };
    let (mut errors, mut doubt) = (Vec::new(), None);
    match library.open(&device.info.name) {
        Ok(context) => {
            let mut keep = |error| errors.push(error);
            device.port = context.port().map(|attr| port(&attr)).map_err(&mut keep).ok();
            device.gids = context.gids();
            device.abilities = abilities(&context).map_err(&mut keep).ok();
            doubt = context.port_problem();
            device.gid = find_gid(&context, Duration::ZERO, &mut |_| {}).map_err(&mut keep).ok();
        }
        Err(error) => errors.push(error),
    }
    device.problems = told_once(&errors, doubt, &device.info.name);
    device
}

/// Errors, and a doubt that none of them has told of; each cause once.
fn told_once(errors: &[VerbsError], doubt: Option<Cause>, device: &str) -> Vec<String> {
    let mut causes: Vec<Cause> = Vec::new();
    let mut told = Vec::new();
    for error in errors {
        match error.cause() {
            Some(cause) if causes.contains(&cause) => continue,
            cause => causes.extend(cause),
        }
        told.push(error.to_string());
    }
    told.extend(doubt.filter(|doubt| !causes.contains(doubt)).map(|doubt| format!("{device}: {doubt}")));
    told
}

fn abilities(context: &Context) -> Result<DeviceCapabilities, VerbsError> {
    DeviceCapabilities::probe(context, &context.domain()?)
}

fn port(attr: &PortAttr) -> Port {
    Port {
        state: attr.state.name().unwrap_or("unknown"),
        mtu: attr.active_mtu.bytes(),
        gigabits: gigabits(attr),
    }
}

/// Whether macOS's `rdma_ctl` reports RDMA as enabled, where that program exists.
fn is_enabled() -> Option<bool> {
    let output = Command::new("rdma_ctl").arg("status").output().ok()?;
    let said = String::from_utf8_lossy(&output.stdout).to_lowercase();
    if said.contains("disabled") {
        return Some(false);
    }
    said.contains("enabled").then_some(true)
}

/// How bytes will get to a peer, in a few words.
pub(super) fn protocol(abilities: &DeviceCapabilities) -> String {
    let service = name(abilities.service);
    match (abilities.one_sided, abilities.write_imm) {
        (true, true) => format!("{service}, remote write + imm, zero-copy both sides"),
        (true, false) => format!("{service}, remote write + flag, zero-copy both sides"),
        (false, _) => format!("{service}, framed sends into posted receives"),
    }
}

/// The services that there are.
pub(super) fn services(abilities: &DeviceCapabilities) -> Vec<&'static str> {
    let best = name(abilities.service);
    let other = name(QpType::UC);
    if abilities.unreliable && best != other { vec![best, other] } else { vec![best] }
}

fn name(service: QpType) -> &'static str {
    service.name().unwrap_or("unknown")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(name: &str) -> DeviceInfo {
        let (node_type, transport_type) =
            (transport::verbs::NodeType::CA, transport::verbs::TransportType::IB);
        DeviceInfo { name: name.into(), guid: 1, node_type, transport_type }
    }

    #[test]
    fn a_thread_that_ends_early_leaves_no_device_out() {
        let (tell, hear) = channel();
        drop(tell);
        let devices = collect(vec![info("a"), info("b")], &hear);
        let problems: Vec<_> = devices.iter().flat_map(|device| &device.problems).collect();
        assert_eq!(problems, ["a: not looked at", "b: not looked at"]);
    }

    #[test]
    fn a_cause_is_told_once() {
        let missing = |cause| VerbsError::NoAddress { device: "a".into(), waited: Duration::ZERO, cause };
        let down = [missing(Cause::PortDown), missing(Cause::PortDown)];
        assert_eq!(told_once(&down, Some(Cause::PortDown), "a").len(), 1);
        let told = told_once(&down, Some(Cause::NoIpv4), "a");
        assert!(told.len() == 2 && told[1].starts_with("a: the port has no IPv4 address; wait"), "{told:?}");
        assert!(told_once(&[], None, "a").is_empty());
    }

    #[test]
    fn a_protocol_follows_from_abilities() {
        let found = DeviceCapabilities {
            service: QpType::RC,
            unreliable: true,
            one_sided: true,
            write_imm: true,
            events: true,
            max_inline: 0,
            max_sge: 1,
            max_message_bytes: 1,
            frame_bytes: None,
            late_registration: true,
            max_regions: 1,
            max_queue_pairs: 1,
            region_line: None,
            depth: 1,
            max_depth: 1,
        };
        assert_eq!(protocol(&found), "RC, remote write + imm, zero-copy both sides");
        assert_eq!(services(&found), ["RC", "UC"]);
        let flag = DeviceCapabilities { write_imm: false, unreliable: false, ..found };
        assert_eq!(protocol(&flag), "RC, remote write + flag, zero-copy both sides");
        assert_eq!(services(&flag), ["RC"]);
        let frames = DeviceCapabilities { service: QpType::UC, one_sided: false, ..found };
        assert_eq!(protocol(&frames), "UC, framed sends into posted receives");
        assert_eq!(services(&frames), ["UC"]);
    }
}
