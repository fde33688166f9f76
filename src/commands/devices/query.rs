//! Queries of all devices of a verbs library.
//!
//! A hanging driver, as on Macs after crashes, must not hang the command. A thread therefore makes the
//! queries, and the command waits for it with a time limit.

use super::CommandError;
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

/// Time that one device may take to answer.
const QUERY_TIMEOUT: Duration = Duration::from_secs(10);

/// The result of the queries.
#[derive(Debug)]
pub(in crate::commands) struct DeviceList {
    /// Name of the loaded library.
    pub(in crate::commands) library: String,
    pub(in crate::commands) devices: Vec<Device>,
    /// The reason why the list is empty.
    pub(in crate::commands) no_devices: Option<String>,
}

/// A device. Values that could not be queried are `None`, and `problems` gives the reasons.
#[derive(Clone, Debug)]
pub(in crate::commands) struct Device {
    pub(in crate::commands) info: DeviceInfo,
    pub(in crate::commands) port: Option<Port>,
    /// The GID that connections use, with its index.
    pub(in crate::commands) gid: Option<(u8, Gid)>,
    pub(in crate::commands) gids: Vec<(u8, Gid)>,
    pub(in crate::commands) abilities: Option<DeviceCapabilities>,
    /// Problems, one line each.
    pub(in crate::commands) problems: Vec<String>,
    /// Cause of each problem, in the same order.
    pub(in crate::commands) causes: Vec<Option<Cause>>,
}

/// The properties of a port.
#[derive(Clone, Copy, Debug)]
pub(in crate::commands) struct Port {
    pub(in crate::commands) state: &'static str,
    /// Bytes.
    pub(in crate::commands) mtu: Option<u32>,
    pub(in crate::commands) gigabits: Option<f64>,
}

/// Queries all devices of a library.
pub(in crate::commands) fn query_all(library: &Library) -> Result<DeviceList, CommandError> {
    let (sender, receiver) = channel();
    let queried = library.clone();
    let began = thread::Builder::new().name("devices".into()).spawn(move || query(&queried, &sender));
    began.map_err(CommandError::new)?;
    let Ok(list) = receiver.recv_timeout(QUERY_TIMEOUT) else {
        return Err(CommandError::new(format_args!("{}: listing devices: {}", library.name(), no_answer())));
    };
    let infos = match list {
        Message::Listed(list) => list.map_err(CommandError::new)?,
        Message::Queried(_) => Vec::new(),
    };
    let no_devices = infos.is_empty().then(|| library.no_devices(is_enabled()).to_string());
    let devices = collect(infos, &receiver);
    Ok(DeviceList { library: library.name().to_owned(), devices, no_devices })
}

/// Messages of the querying thread, in this order.
enum Message {
    Listed(Result<Vec<DeviceInfo>, VerbsError>),
    Queried(Box<Device>),
}

/// Returns the devices in their order, including those that do not answer. After the first that does not
/// answer, no other is queried.
fn collect(infos: Vec<DeviceInfo>, receiver: &Receiver<Message>) -> Vec<Device> {
    let mut is_stuck = false;
    let mut next = |info: DeviceInfo| {
        let name = info.name.clone();
        let unanswered = |why: String| Device {
            info,
            port: None,
            gid: None,
            gids: Vec::new(),
            abilities: None,
            problems: vec![format!("{name}: {why}")],
            causes: vec![None],
        };
        if is_stuck {
            return unanswered("not queried, because the previous device does not answer".into());
        }
        match receiver.recv_timeout(QUERY_TIMEOUT) {
            Ok(Message::Queried(device)) => *device,
            Err(RecvTimeoutError::Timeout) => {
                is_stuck = true;
                unanswered(no_answer())
            }
            Ok(Message::Listed(_)) | Err(RecvTimeoutError::Disconnected) => unanswered("not queried".into()),
        }
    };
    infos.into_iter().map(&mut next).collect()
}

fn no_answer() -> String {
    let seconds = QUERY_TIMEOUT.as_secs();
    format!(
        "no answer for {seconds} s; the driver hangs, which crashes can leave behind: restart the machine"
    )
}

fn query(library: &Library, sender: &Sender<Message>) {
    let list = library.devices();
    let infos = list.clone().unwrap_or_default();
    if sender.send(Message::Listed(list)).is_err() {
        return;
    }
    for info in infos {
        // The send fails once the command has ended.
        if sender.send(Message::Queried(Box::new(query_device(library, info)))).is_err() {
            return;
        }
    }
}

fn query_device(library: &Library, info: DeviceInfo) -> Device {
    let mut device = Device {
        info,
        port: None,
        gid: None,
        gids: Vec::new(),
        abilities: None,
        problems: Vec::new(),
        causes: Vec::new(),
    };
    let (mut errors, mut port_problem) = (Vec::new(), None);
    match library.open(&device.info.name) {
        Ok(context) => {
            let mut keep = |error| errors.push(error);
            device.port = context.port().map(|attr| port(&attr)).map_err(&mut keep).ok();
            device.gids = context.gids();
            device.abilities = abilities(&context).map_err(&mut keep).ok();
            port_problem = context.port_problem();
            device.gid = find_gid(&context, None, Duration::ZERO, &mut |_| {}).map_err(&mut keep).ok();
        }
        Err(error) => errors.push(error),
    }
    (device.causes, device.problems) = distinct_problems(&errors, port_problem, &device.info.name);
    device
}

/// Returns the errors and the port's problem, each cause once.
fn distinct_problems(
    errors: &[VerbsError],
    port_problem: Option<Cause>,
    device: &str,
) -> (Vec<Option<Cause>>, Vec<String>) {
    let mut causes: Vec<Option<Cause>> = Vec::new();
    let mut problems = Vec::new();
    for error in errors {
        let cause = error.cause();
        if cause.is_none() || !causes.contains(&cause) {
            causes.push(cause);
            problems.push(error.to_string());
        }
    }
    if let Some(cause) = port_problem.filter(|cause| !causes.contains(&Some(*cause))) {
        causes.push(Some(cause));
        problems.push(format!("{device}: {cause}"));
    }
    (causes, problems)
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
    let reported = String::from_utf8_lossy(&output.stdout).to_lowercase();
    if reported.contains("disabled") {
        return Some(false);
    }
    reported.contains("enabled").then_some(true)
}

/// Returns a short description of the data transfer to a peer.
pub(super) fn protocol(abilities: &DeviceCapabilities) -> String {
    let service = name(abilities.service);
    match (abilities.one_sided, abilities.write_imm) {
        (true, true) => format!("{service}, remote write + imm, zero-copy both sides"),
        (true, false) => format!("{service}, remote write + flag, zero-copy both sides"),
        (false, _) => format!("{service}, framed sends into posted receives"),
    }
}

/// Returns the transport services that the device offers.
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
        let (sender, receiver) = channel();
        drop(sender);
        let devices = collect(vec![info("a"), info("b")], &receiver);
        let problems: Vec<_> = devices.iter().flat_map(|device| &device.problems).collect();
        assert_eq!(problems, ["a: not queried", "b: not queried"]);
    }

    #[test]
    fn a_cause_is_told_once() {
        let missing = |cause| VerbsError::NoAddress { device: "a".into(), waited: Duration::ZERO, cause };
        let down = [missing(Cause::PortDown), missing(Cause::PortDown)];
        assert_eq!(distinct_problems(&down, Some(Cause::PortDown), "a").1.len(), 1);
        let (causes, problems) = distinct_problems(&down, Some(Cause::NoIpv4), "a");
        assert_eq!(causes, [Some(Cause::PortDown), Some(Cause::NoIpv4)]);
        assert!(
            problems.len() == 2 && problems[1].starts_with("a: the port has no IPv4 address; wait"),
            "{problems:?}"
        );
        assert_eq!(distinct_problems(&[], None, "a"), (Vec::new(), Vec::new()));
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
