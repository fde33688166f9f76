//! `softrdma check` and `softrdma nodes`: check and show fabric files.

use super::{CliError, print};
use serde::Serialize;
use softrdma::fabric::{Device, Fabric, GidAvailability};
use std::{fmt::Write, path::PathBuf};

/// Check fabric files, and print the position of errors
#[derive(Debug, clap::Args)]
pub(crate) struct CheckArgs {
    /// The files
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
}

/// List the nodes of a fabric file, their devices, and their cables
#[derive(Debug, clap::Args)]
pub(crate) struct NodesArgs {
    /// The file
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs `softrdma check`.
pub(crate) fn check(args: &CheckArgs) -> Result<(), CliError> {
    for file in &args.files {
        let fabric = Fabric::load(file).map_err(CliError::new)?;
        let count =
            |number: usize, what: &str| format!("{number} {what}{}", if number == 1 { "" } else { "s" });
        print(&format!(
            "{}: {}, {}, {}\n",
            file.display(),
            count(fabric.nodes.len(), "node"),
            count(fabric.devices.len(), "device"),
            count(fabric.cables.len(), "cable"),
        ));
    }
    Ok(())
}

/// The output of `--json`.
#[derive(Serialize)]
struct FabricView<'a> {
    /// Hash of the file in hexadecimal; equal for equal files.
    digest: String,
    nodes: Vec<NodeView<'a>>,
}

#[derive(Serialize)]
struct NodeView<'a> {
    name: &'a str,
    devices: Vec<DeviceView<'a>>,
}

#[derive(Serialize)]
struct DeviceView<'a> {
    name: &'a str,
    profile: &'a str,
    ipv4: String,
    gid: &'static str,
    gid_index: u8,
    up: bool,
    cable: Option<&'a str>,
    /// The port at the other end of the cable.
    peer: Option<String>,
}

/// Runs `softrdma nodes`.
pub(crate) fn nodes(args: &NodesArgs) -> Result<(), CliError> {
    let fabric = Fabric::load(&args.file).map_err(CliError::new)?;
    let nodes = fabric.nodes.iter().enumerate().map(|(number, node)| NodeView {
        name: &node.name,
        devices: fabric.devices_of(number).iter().map(|device| view(&fabric, device)).collect(),
    });
    let view = FabricView { digest: format!("{:016x}", fabric.digest), nodes: nodes.collect() };
    if args.json {
        let text = serde_json::to_string_pretty(&view).map_err(CliError::new)?;
        print(&(text + "\n"));
    } else {
        print(&table(&view));
    }
    Ok(())
}

fn view<'a>(fabric: &'a Fabric, device: &'a Device) -> DeviceView<'a> {
    DeviceView {
        name: &device.name,
        profile: device.profile.name,
        ipv4: device.ipv4.to_string(),
        gid: match device.gid {
            GidAvailability::Present => "present",
            GidAvailability::Late(_) => "late",
            GidAvailability::Missing => "missing",
        },
        gid_index: device.gid_index,
        up: device.is_up && device.cable_end.is_some(),
        cable: device.cable_end.map(|end| fabric.cables[end.cable].name.as_str()),
        peer: fabric.peer(device).map(|peer| fabric.port_name(peer)),
    }
}

fn table(view: &FabricView<'_>) -> String {
    let mut text = String::new();
    for (number, node) in view.nodes.iter().enumerate() {
        _ = writeln!(text, "{number}  {}", node.name);
        for device in &node.devices {
            let peer = device.peer.as_deref().unwrap_or("no cable");
            let port = if device.up { "" } else { "  down" };
            _ = writeln!(
                text,
                "     {:<12} {:<10} {:<16} -> {peer}{port}",
                device.name, device.profile, device.ipv4
            );
        }
    }
    text
}
