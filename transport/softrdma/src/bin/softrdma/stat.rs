//! `softrdma stat`: prints the traffic of a fabric's cables, and its current faults.

use super::{
    CliError, print,
    running_fabric::{FabricArgs, RunningFabric},
};
use serde::Serialize;
use softrdma::{
    control::Control,
    fabric::{Cable, Fabric},
};
use std::{fmt::Write, sync::atomic::Ordering::Relaxed};

/// Show messages and bytes per cable and direction, and current faults
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    fabric: FabricArgs,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct View {
    cables: Vec<CableView>,
    /// Ports that are down although they have a cable.
    down: Vec<String>,
    /// Stalled nodes.
    stalled: Vec<String>,
    /// Ports with leaked protection domains.
    leaks: Vec<LeakView>,
}

#[derive(Serialize)]
struct LeakView {
    port: String,
    /// Leaked protection domains, at most the number that the device has.
    domains: u32,
}

#[derive(Serialize)]
struct CableView {
    name: String,
    unplugged: bool,
    lanes: Vec<LaneView>,
}

#[derive(Serialize)]
struct LaneView {
    from: String,
    to: String,
    messages: u64,
    bytes: u64,
    lost: u64,
    corrupted: u64,
}

/// Runs `softrdma stat`.
pub(crate) fn run(args: &Args) -> Result<(), CliError> {
    let RunningFabric { fabric, observer } = RunningFabric::open(&args.fabric)?;
    let view = view(&fabric, observer.control());
    if args.json {
        let text = serde_json::to_string_pretty(&view).map_err(CliError::new)?;
        print(&(text + "\n"));
    } else {
        print(&table(&view));
    }
    Ok(())
}

fn view(fabric: &Fabric, control: &Control) -> View {
    let cables = fabric.cables.iter().enumerate().map(|(number, cable)| CableView {
        name: cable.name.clone(),
        unplugged: control.cables[number].is_unplugged.load(Relaxed) != 0,
        lanes: lanes(fabric, control, number, cable),
    });
    let down = fabric
        .devices
        .iter()
        .filter(|device| device.cable_end.is_some() && !control.has_link(fabric, device));
    let stalled = fabric.nodes.iter().zip(&control.nodes);
    let stalled = stalled.filter(|(_, words)| words.is_stalled.load(Relaxed) != 0);
    let leaks = fabric.devices.iter().filter_map(|device| {
        let leaked = control.ports[device.port].leaked_pds.load(Relaxed);
        let domains = leaked.min(device.profile.max_pd);
        (domains > 0).then(|| LeakView { port: fabric.port_name(device), domains })
    });
    View {
        leaks: leaks.collect(),
        cables: cables.collect(),
        down: down.map(|device| fabric.port_name(device)).collect(),
        stalled: stalled.map(|(node, _)| node.name.clone()).collect(),
    }
}

fn lanes(fabric: &Fabric, control: &Control, number: usize, cable: &Cable) -> Vec<LaneView> {
    let name = |side: usize| fabric.port_name(&fabric.devices[cable.ports[side]]);
    let lane = |side: usize| {
        let words = &control.cables[number].lanes[side];
        LaneView {
            from: name(side),
            to: name(1 - side),
            messages: words.messages.load(Relaxed),
            bytes: words.bytes.load(Relaxed),
            lost: words.dropped.load(Relaxed),
            corrupted: words.corrupted.load(Relaxed),
        }
    };
    // A loopback plug has only one direction.
    let sides = if cable.ports[0] == cable.ports[1] { 0..1 } else { 0..2 };
    sides.map(lane).collect()
}

fn table(view: &View) -> String {
    let all = || view.cables.iter().flat_map(|cable| &cable.lanes);
    let wide = |width: fn(&LaneView) -> usize| all().map(width).max().unwrap_or_default().max(4);
    let (from, to) = (wide(|lane| lane.from.len()), wide(|lane| lane.to.len()));
    let mut text = format!(
        "{:<from$}    {:<to$} {:>12} {:>16} {:>10} {:>10}\n",
        "from", "to", "messages", "bytes", "lost", "corrupted"
    );
    for cable in &view.cables {
        let state = if cable.unplugged { "  unplugged" } else { "" };
        for lane in &cable.lanes {
            _ = writeln!(
                text,
                "{:<from$} -> {:<to$} {:>12} {:>16} {:>10} {:>10}{state}",
                lane.from, lane.to, lane.messages, lane.bytes, lane.lost, lane.corrupted
            );
        }
    }
    for port in &view.down {
        _ = writeln!(text, "{port} is down");
    }
    for LeakView { port, domains } in &view.leaks {
        _ = writeln!(text, "{port} has leaked {domains} protection domains");
    }
    for node in &view.stalled {
        _ = writeln!(text, "{node} is stalled");
    }
    text
}
