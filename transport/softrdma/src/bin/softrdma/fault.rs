//! `softrdma fault`: injects a fault into a running fabric, or clears it.

use super::{
    CliError, freeze,
    running_fabric::{FabricArgs, RunningFabric},
};
use clap::Subcommand;
use softrdma::{
    control::Command,
    fabric::{Fabric, GidChange, Override},
    profile::UnplugBehavior,
};
use std::net::Ipv4Addr;

const EXAMPLES: &str = "\
A cable is named as in the fabric file, by its number from 0, or by one of its ports; a port is
NODE/DEVICE; a node is named by name or number.

Examples:
  softrdma fault unplug mac0/rdma_en2          and replug
  softrdma fault port-down mac1/rdma_en3       and port-up
  softrdma fault fail-qp mac0/rdma_en2         all queue pairs of the device
  softrdma fault unplug mac0/rdma_en2 --crash  posting then crashes the process
  softrdma fault leak mac0/rdma_en2            no domains are left; --domains 0 restores them
  softrdma fault gid mac0/rdma_en2 --index 2   the IPv4-mapped address moves
  softrdma fault freeze 4711                   until `kill -CONT 4711`";

/// Inject a fault into a running fabric, or clear it
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = true, disable_help_subcommand = true)]
pub(crate) struct Args {
    #[command(flatten)]
    fabric: FabricArgs,

    #[command(subcommand)]
    fault: Fault,
}

#[derive(Debug, Subcommand)]
enum Fault {
    /// Unplug a cable: both ports go down, and messages in flight are lost
    Unplug {
        cable: String,

        /// Crash processes that post to the port (SIGSEGV), if the profile does (apple-tb5); without this
        /// option such a device warns and holds the work
        #[arg(long)]
        crash: bool,
    },
    /// Plug a cable in again
    Replug { cable: String },
    /// Take a port down
    PortDown { port: String },
    /// Take a port up, even one that is down in the fabric file
    PortUp { port: String },
    /// Fail a queue pair, or all of a device
    FailQp(Target),
    /// Overflow the completion queues of a queue pair, or all of a device
    OverflowCq(Target),
    /// Stop a connection without an error, as a long idle time does, or all connections of a device
    Sleep(Target),
    /// Leak protection domains, as crashed processes do on a Mac: allocating one then fails
    Leak(LeakArgs),
    /// Stall the processes of a node: they seem dead
    Stall { node: String },
    /// Let the processes of a stalled node continue
    Resume { node: String },
    /// Stop a process (SIGSTOP) while it holds no lock of the fabric: no device of hardware waits for a
    /// stopped process
    Freeze { pid: u32 },
    /// Change the IPv4-mapped address of a port
    Gid(GidArgs),
}

#[derive(Debug, clap::Args)]
struct Target {
    /// The port of the device
    port: String,

    /// The number of the queue pair; all of the device when left out
    #[arg(long, value_name = "N", default_value = "0", hide_default_value = true)]
    qp: u32,
}

#[derive(Debug, clap::Args)]
struct LeakArgs {
    /// The port of the device
    port: String,

    /// Protection domains to leak; all when left out, 0 to undo
    #[arg(long, value_name = "N")]
    domains: Option<u32>,
}

#[derive(Debug, clap::Args)]
struct GidArgs {
    /// The port
    port: String,

    /// Remove the address
    #[arg(long, conflicts_with_all = ["index", "ipv4"])]
    missing: bool,

    /// Move the address to this index of the GID table
    #[arg(long, value_name = "INDEX", value_parser = clap::value_parser!(u8).range(1..4))]
    index: Option<u8>,

    /// Change the IPv4 address that it maps
    #[arg(long, value_name = "ADDRESS")]
    ipv4: Option<Ipv4Addr>,

    /// Restore the address of the fabric file
    #[arg(long, conflicts_with_all = ["missing", "index", "ipv4"])]
    restore: bool,
}

/// Runs `softrdma fault`.
pub(crate) fn run(args: &Args) -> Result<(), CliError> {
    let RunningFabric { fabric, observer } = RunningFabric::open(&args.fabric)?;
    let control = observer.control();
    let port = |name: &str| fabric.find_device(name).map(|device| device.port).map_err(CliError::new);
    let cable = |name: &str| fabric.find_cable(name).map_err(CliError::new);
    let node = |name: &str| fabric.find_node(name).map_err(CliError::new);
    match &args.fault {
        Fault::Unplug { cable: name, crash: false } => control.set_unplugged(cable(name)?, true),
        Fault::Unplug { cable: name, crash: true } => {
            let number = cable(name)?;
            check_crash_supported(&fabric, number)?;
            control.unplug_and_crash(number);
        }
        Fault::Replug { cable: name } => control.set_unplugged(cable(name)?, false),
        Fault::PortDown { port: name } => control.force_port(port(name)?, Override::Off),
        Fault::PortUp { port: name } => control.force_port(port(name)?, Override::On),
        Fault::FailQp(target) => {
            control.issue(Command::FailQp { port: port(&target.port)? as u32, qp: target.qp });
        }
        Fault::OverflowCq(target) => {
            control.issue(Command::OverflowCq { port: port(&target.port)? as u32, qp: target.qp });
        }
        Fault::Sleep(target) => {
            control.issue(Command::Sleep { port: port(&target.port)? as u32, qp: target.qp });
        }
        Fault::Leak(leak) => control.leak_pds(port(&leak.port)?, leak.domains.unwrap_or(u32::MAX)),
        Fault::Stall { node: name } => control.set_stalled(node(name)?, true),
        Fault::Resume { node: name } => control.set_stalled(node(name)?, false),
        Fault::Freeze { pid } => return freeze::freeze(&observer, *pid),
        Fault::Gid(gid) => {
            let state = match (gid.missing, gid.restore) {
                (true, _) => Override::Off,
                (_, true) => Override::AsInFile,
                _ => Override::On,
            };
            let change = GidChange { index: gid.index, ipv4: gid.ipv4 };
            control.change_gid(port(&gid.port)?, state, change);
        }
    }
    observer.wake_all();
    Ok(())
}

/// Checks that a device at the cable has a profile that crashes when unplugged.
fn check_crash_supported(fabric: &Fabric, cable: usize) -> Result<(), CliError> {
    let crashes = |port: &usize| fabric.devices[*port].profile.unplug_behavior == UnplugBehavior::Crashes;
    if fabric.cables[cable].ports.iter().any(crashes) {
        return Ok(());
    }
    let name = &fabric.cables[cable].name;
    Err(CliError::new(format_args!("no device at {name} crashes when it is unplugged; leave out --crash")))
}
