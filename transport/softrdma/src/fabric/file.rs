//! The TOML format of fabric files, and its conversion to a [`Fabric`].

use super::{
    Cable, CableEnd, Device, Fabric, GID_TABLE_LEN, GidAvailability, MAX_CABLES, MAX_NODES, MAX_PORTS, Node,
    error::SpannedError,
};
use crate::{
    link_model::{LinkModel, Probability},
    profile::Profile,
    suggestion,
};
use serde::Deserialize;
use std::{collections::HashMap, net::Ipv4Addr, ops::Range};
use toml::Spanned;
use verbs_sys::SYSFS_NAME_MAX;
use xxhash_rust::xxh3::xxh3_64;

/// The top level of a fabric file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    /// Profile of devices that name none.
    profile: Option<Spanned<String>>,
    /// Defaults for all cables.
    #[serde(default)]
    link: Link,
    #[serde(default)]
    node: Vec<Spanned<NodeTable>>,
    #[serde(default)]
    cable: Vec<Spanned<CableTable>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeTable {
    name: Spanned<String>,
    #[serde(default)]
    device: Vec<Spanned<DeviceTable>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DeviceTable {
    name: Spanned<String>,
    profile: Option<Spanned<String>>,
    port: Option<Spanned<String>>,
    ipv4: Option<Spanned<Ipv4Addr>>,
    gid: Option<Spanned<String>>,
    gid_index: Option<Spanned<u8>>,
    gid_after_ms: Option<Spanned<u32>>,
    idle_ms: Option<u32>,
    usable_depth: Option<Spanned<u32>>,
    usable_queue_pairs: Option<Spanned<u32>>,
}

/// A cable. Repeats the keys of [`Link`] because serde can't both flatten and reject unknown keys.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CableTable {
    name: Option<Spanned<String>>,
    ends: Spanned<Vec<Spanned<String>>>,
    latency_us: Option<Spanned<f64>>,
    bandwidth_gbps: Option<Spanned<f64>>,
    whole_frames: Option<Spanned<bool>>,
    jitter_us: Option<Spanned<f64>>,
    loss: Option<Spanned<f64>>,
    corruption: Option<Spanned<f64>>,
    seed: Option<u64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Link {
    latency_us: Option<Spanned<f64>>,
    bandwidth_gbps: Option<Spanned<f64>>,
    whole_frames: Option<Spanned<bool>>,
    jitter_us: Option<Spanned<f64>>,
    loss: Option<Spanned<f64>>,
    corruption: Option<Spanned<f64>>,
    seed: Option<u64>,
}

/// Parses the text of a fabric file.
pub(super) fn read(text: &str) -> Result<Fabric, SpannedError> {
    let file: File = toml::from_str(text).map_err(|error| from_toml(&error))?;
    let mut fabric = Fabric {
        digest: xxh3_64(text.as_bytes()),
        nodes: Vec::new(),
        devices: Vec::new(),
        cables: Vec::new(),
    };
    let default = file.profile.as_ref().map(profile).transpose()?;
    if file.node.is_empty() {
        return Err(SpannedError::new(0..0, "a fabric needs a [[node]]"));
    }
    for node in &file.node {
        add_node(&mut fabric, node, default)?;
    }
    check_addresses(&fabric, &file)?;
    // Checks the defaults even if no cable uses them.
    link_model(&file.link, &Link::default(), 0, None)?;
    for cable in &file.cable {
        add_cable(&mut fabric, cable, &file.link)?;
    }
    Ok(fabric)
}

fn add_node(
    fabric: &mut Fabric,
    node: &Spanned<NodeTable>,
    default: Option<&'static Profile>,
) -> Result<(), SpannedError> {
    let table = node.get_ref();
    let name = valid_name("node", &table.name)?;
    if let Some(number) = fabric.nodes.iter().position(|node| node.name == name) {
        return Err(SpannedError::new(
            table.name.span(),
            format!("there is a node `{name}` already: the {}", ordinal(number)),
        ));
    }
    if fabric.nodes.len() == MAX_NODES {
        return Err(SpannedError::new(
            node.span(),
            format!("too many nodes: a fabric has {MAX_NODES} at most"),
        ));
    }
    let first = fabric.devices.len();
    for device in &table.device {
        let device = read_device(fabric, first, device, default)?;
        fabric.devices.push(device);
    }
    fabric.nodes.push(Node { name, ports: first..fabric.devices.len() });
    Ok(())
}

fn read_device(
    fabric: &Fabric,
    first: usize,
    device: &Spanned<DeviceTable>,
    default: Option<&'static Profile>,
) -> Result<Device, SpannedError> {
    let table = device.get_ref();
    let (node, port) = (fabric.nodes.len(), fabric.devices.len());
    let name = valid_name("device", &table.name)?;
    if fabric.devices[first..].iter().any(|device| device.name == name) {
        return Err(SpannedError::new(table.name.span(), format!("this node has a device `{name}` already")));
    }
    if port == MAX_PORTS || port - first == 250 {
        let message = format!("too many devices: a node has 250 at most, a fabric {MAX_PORTS}");
        return Err(SpannedError::new(device.span(), message));
    }
    let profile = match &table.profile {
        Some(name) => profile(name)?,
        None => default.ok_or_else(|| {
            let known = suggestion::suggest("", Profile::ALL.map(|profile| profile.name));
            SpannedError::new(
                table.name.span(),
                format!("`{name}` needs a `profile`, here or for all at the top of the file{known}"),
            )
        })?,
    };
    let gid_index = match &table.gid_index {
        None => profile.ipv4_gid_index,
        Some(index) if (1..GID_TABLE_LEN).contains(&usize::from(*index.get_ref())) => *index.get_ref(),
        Some(index) => {
            let message =
                format!("gid_index is from 1 to {}; at 0 is a link-local address", GID_TABLE_LEN - 1);
            return Err(SpannedError::new(index.span(), message));
        }
    };
    let ipv4 = match &table.ipv4 {
        Some(ipv4) => *ipv4.get_ref(),
        // The default address is link-local as on macOS, and unique by node and device.
        None => Ipv4Addr::new(169, 254, node as u8 + 1, (port - first) as u8 + 1),
    };
    let is_up = match &table.port {
        None => true,
        Some(port) => one_of("port", port, &[("up", true), ("down", false)])?,
    };
    let idle_ns = match table.idle_ms {
        None => profile.idle_limit.map_or(0, |limit| limit.as_nanos() as u64),
        Some(ms) => u64::from(ms) * 1_000_000,
    };
    let usable_depth = match &table.usable_depth {
        None => u32::MAX,
        Some(depth) if *depth.get_ref() > 0 => *depth.get_ref(),
        Some(depth) => return Err(SpannedError::new(depth.span(), "usable_depth is at least 1")),
    };
    let usable_queue_pairs = match &table.usable_queue_pairs {
        None => profile.usable_qps,
        Some(count) if (1..=profile.usable_qps).contains(count.get_ref()) => *count.get_ref(),
        Some(count) => {
            let what = format!(
                "usable_queue_pairs is from 1 to {}, as profile = \"{}\" has",
                profile.usable_qps, profile.name
            );
            return Err(SpannedError::new(count.span(), what));
        }
    };
    let gid = gid(table)?;
    Ok(Device {
        name,
        profile,
        node,
        port,
        is_up,
        ipv4,
        gid,
        gid_index,
        idle_ns,
        usable_depth,
        usable_queue_pairs,
        cable_end: None,
    })
}

fn gid(table: &DeviceTable) -> Result<GidAvailability, SpannedError> {
    let after = table.gid_after_ms.as_ref();
    let late = GidAvailability::Late(after.map_or(0, |ms| u64::from(*ms.get_ref()) * 1_000_000));
    let plan = match &table.gid {
        None => GidAvailability::Present,
        Some(gid) => one_of(
            "gid",
            gid,
            &[("present", GidAvailability::Present), ("late", late), ("missing", GidAvailability::Missing)],
        )?,
    };
    match (plan, after, &table.gid) {
        (GidAvailability::Late(_), None, Some(gid)) => {
            Err(SpannedError::new(gid.span(), "gid = \"late\" needs gid_after_ms, e.g. gid_after_ms = 500"))
        }
        (GidAvailability::Present | GidAvailability::Missing, Some(after), _) => {
            Err(SpannedError::new(after.span(), "gid_after_ms is only valid with gid = \"late\""))
        }
        _ => Ok(plan),
    }
}

/// Rejects equal addresses, since the ports could not be told apart.
fn check_addresses(fabric: &Fabric, file: &File) -> Result<(), SpannedError> {
    let mut seen = HashMap::new();
    let tables = file.node.iter().flat_map(|node| &node.get_ref().device);
    for (device, table) in fabric.devices.iter().zip(tables) {
        if let Some(other) = seen.insert(device.ipv4, device) {
            let span = table.get_ref().ipv4.as_ref().map_or(table.span(), Spanned::span);
            let message = format!("{} is the address of {} already", device.ipv4, fabric.port_name(other));
            return Err(SpannedError::new(span, message));
        }
    }
    Ok(())
}

fn add_cable(fabric: &mut Fabric, cable: &Spanned<CableTable>, defaults: &Link) -> Result<(), SpannedError> {
    let table = cable.get_ref();
    let number = fabric.cables.len();
    if number == MAX_CABLES {
        return Err(SpannedError::new(
            cable.span(),
            format!("too many cables: a fabric has {MAX_CABLES} at most"),
        ));
    }
    let [first, second] = table.ends.get_ref().as_slice() else {
        return Err(SpannedError::new(
            table.ends.span(),
            "a cable has two ends, e.g. ends = [\"a/rdma0\", \"b/rdma0\"]",
        ));
    };
    let ports = [plug(fabric, first, CableEnd { cable: number, side: 0 })?, {
        // A loopback plug has both ends in one port.
        if first.get_ref() == second.get_ref() {
            port(fabric, second)?
        } else {
            plug(fabric, second, CableEnd { cable: number, side: 1 })?
        }
    }];
    let name = match &table.name {
        Some(name) => valid_name("cable", name)?,
        None => format!("{}--{}", first.get_ref(), second.get_ref()),
    };
    if fabric.cables.iter().any(|cable| cable.name == name) {
        let span = table.name.as_ref().map_or(cable.span(), Spanned::span);
        return Err(SpannedError::new(span, format!("there is a cable `{name}` already")));
    }
    let own = Link {
        latency_us: table.latency_us.clone(),
        bandwidth_gbps: table.bandwidth_gbps.clone(),
        whole_frames: table.whole_frames.clone(),
        jitter_us: table.jitter_us.clone(),
        loss: table.loss.clone(),
        corruption: table.corruption.clone(),
        seed: table.seed,
    };
    let frame_bytes = ports.iter().filter_map(|port| fabric.devices[*port].profile.frame_bytes).max();
    if let (Some(whole), None) = (own.whole_frames.as_ref().filter(|whole| *whole.get_ref()), frame_bytes) {
        let what = "whole_frames needs a device that counts in frames, as profile = \"apple-tb5\" does";
        return Err(SpannedError::new(whole.span(), what));
    }
    let model = link_model(&own, defaults, number, frame_bytes)?;
    fabric.cables.push(Cable { name, ports, model });
    Ok(())
}

/// Returns the port named `NODE/DEVICE`.
fn port(fabric: &Fabric, name: &Spanned<String>) -> Result<usize, SpannedError> {
    fabric
        .find_device(name.get_ref())
        .map(|device| device.port)
        .map_err(|message| SpannedError::new(name.span(), message))
}

/// Plugs the end of a cable into the named port.
fn plug(fabric: &mut Fabric, name: &Spanned<String>, end: CableEnd) -> Result<usize, SpannedError> {
    let port = port(fabric, name)?;
    if let Some(other) = fabric.devices[port].cable_end {
        let free: Vec<String> = fabric
            .devices
            .iter()
            .filter(|d| d.cable_end.is_none())
            .map(|device| fabric.port_name(device))
            .collect();
        let free = if free.is_empty() { "none".to_owned() } else { free.join(", ") };
        let taken = ordinal(other.cable);
        let message = format!("`{}` has a cable already, the {taken}; free ports: {free}", name.get_ref());
        return Err(SpannedError::new(name.span(), message));
    }
    fabric.devices[port].cable_end = Some(end);
    Ok(port)
}

/// Merges a cable's own settings with the defaults. `frame_bytes` are those of the devices at its ends, if
/// these count in frames.
fn link_model(
    own: &Link,
    defaults: &Link,
    number: usize,
    frame_bytes: Option<u32>,
) -> Result<LinkModel, SpannedError> {
    let whole_frames = own.whole_frames.as_ref().or(defaults.whole_frames.as_ref());
    let travels_whole = whole_frames.is_some_and(|whole| *whole.get_ref());
    let latency = own.latency_us.as_ref().or(defaults.latency_us.as_ref());
    let bandwidth = own.bandwidth_gbps.as_ref().or(defaults.bandwidth_gbps.as_ref());
    let jitter = own.jitter_us.as_ref().or(defaults.jitter_us.as_ref());
    Ok(LinkModel {
        latency_ns: nanoseconds("latency_us", latency)?,
        ps_per_byte: picoseconds_per_byte(bandwidth)?,
        frame_bytes: frame_bytes.filter(|_| travels_whole).map_or(0, u64::from),
        jitter_ns: nanoseconds("jitter_us", jitter)?,
        loss: probability("loss", own.loss.as_ref().or(defaults.loss.as_ref()))?,
        corruption: probability("corruption", own.corruption.as_ref().or(defaults.corruption.as_ref()))?,
        // Each cable gets its own seed, so cables with a common default lose different messages.
        seed: own.seed.unwrap_or_else(|| defaults.seed.unwrap_or_default().wrapping_add(number as u64)),
    })
}

fn nanoseconds(key: &str, microseconds: Option<&Spanned<f64>>) -> Result<u64, SpannedError> {
    match microseconds.map(|value| (*value.get_ref(), value.span())) {
        None => Ok(0),
        Some((value, _)) if (0.0..=10_000_000.0).contains(&value) => Ok((value * 1000.0).round() as u64),
        Some((_, span)) => {
            Err(SpannedError::new(span, format!("{key} is from 0 to 10000000 microseconds, ten seconds")))
        }
    }
}

fn picoseconds_per_byte(gbps: Option<&Spanned<f64>>) -> Result<u64, SpannedError> {
    match gbps.map(|value| (*value.get_ref(), value.span())) {
        None => Ok(0),
        Some((value, _)) if (0.001..=8000.0).contains(&value) => Ok((8000.0 / value).round() as u64),
        Some((_, span)) => {
            Err(SpannedError::new(span, "bandwidth_gbps is from 0.001 to 8000; leave it out for no limit"))
        }
    }
}

fn probability(key: &str, probability: Option<&Spanned<f64>>) -> Result<Probability, SpannedError> {
    let Some(probability) = probability else { return Ok(Probability::NEVER) };
    Probability::new(*probability.get_ref())
        .ok_or_else(|| SpannedError::new(probability.span(), format!("{key} is a probability, from 0 to 1")))
}

fn profile(name: &Spanned<String>) -> Result<&'static Profile, SpannedError> {
    Profile::by_name(name.get_ref()).map_err(|error| SpannedError::new(name.span(), error.to_string()))
}

/// Returns the value of a keyword, or an error that lists the valid ones.
fn one_of<T: Copy>(key: &str, word: &Spanned<String>, words: &[(&str, T)]) -> Result<T, SpannedError> {
    let found = words.iter().find(|(valid, _)| valid == word.get_ref());
    found.map(|(_, value)| *value).ok_or_else(|| {
        let advice = suggestion::suggest(word.get_ref(), words.iter().map(|(valid, _)| *valid));
        SpannedError::new(word.span(), format!("unknown {key} `{}`{advice}", word.get_ref()))
    })
}

/// Checks that a name fits into the structures of verbs and into command arguments.
fn valid_name(kind: &str, name: &Spanned<String>) -> Result<String, SpannedError> {
    let text = name.get_ref();
    let is_odd = |c: char| c == '/' || c.is_whitespace() || c.is_control();
    if text.is_empty() || text.len() >= SYSFS_NAME_MAX || (kind != "cable" && text.contains(is_odd)) {
        let message =
            format!("`{text}` is not a valid name of a {kind}: 1 to 63 bytes, without slashes and spaces");
        return Err(SpannedError::new(name.span(), message));
    }
    Ok(text.clone())
}

/// Formats a zero-based number as `1st`, `2nd`, ...
fn ordinal(number: usize) -> String {
    let number = number + 1;
    let ending = match (number % 10, number % 100) {
        (1, rest) if rest != 11 => "st",
        (2, rest) if rest != 12 => "nd",
        (3, rest) if rest != 13 => "rd",
        _ => "th",
    };
    format!("{number}{ending}")
}

/// Converts an error of TOML or serde, and adds a suggestion for unknown keys.
fn from_toml(error: &toml::de::Error) -> SpannedError {
    let span: Range<usize> = error.span().unwrap_or_default();
    let told = error.message().replace('\n', ", ");
    let Some(rest) = told.strip_prefix("unknown field `") else { return SpannedError::new(span, told) };
    let mut quoted = rest.split('`').step_by(2);
    let given = quoted.next().unwrap_or_default().to_owned();
    let valid: Vec<&str> = rest.split('`').skip(2).step_by(2).collect();
    SpannedError::new(span, format!("unknown key `{given}`{}", suggestion::suggest(&given, valid)))
}
