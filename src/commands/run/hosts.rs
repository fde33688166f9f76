//! The hosts of a job, from the command line and a hostfile.

use super::{CommandError, devices, mlx, this_program};
use crate::launch::{HostSpec, Hosts, LaunchSpec, Output};
use std::{
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
};
use topology::{DealOrder, Host, Hostfile, Request, Wiring, allocate};

/// Options that choose and reach hosts.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Hosts")]
pub(super) struct HostArgs {
    /// Hostfile: MLX's JSON, Open MPI's text, or TOML as in configs/hosts; the format is detected
    #[arg(long, visible_alias = "machinefile", value_name = "FILE")]
    hostfile: Option<PathBuf>,

    /// Hosts as a list: a,b:2,c
    #[arg(long, visible_alias = "host", short = 'H', value_name = "LIST", conflicts_with = "hostfile")]
    hosts: Option<String>,

    /// Ranks per host, instead of its slots
    #[arg(long, value_name = "K", value_parser = super::arguments::ranks)]
    per_host: Option<u32>,

    /// Order of ranks: fill each host before the next (slot), or one rank per host in turn (node)
    #[arg(long, value_name = "HOW", default_value = "slot")]
    map_by: MapBy,

    /// Let hosts have more ranks than slots, up to their maximum
    #[arg(long)]
    oversubscribe: bool,

    /// Order of hosts: along the cables (cables), or as in the file (file)
    #[arg(long, value_name = "HOW", default_value = "cables")]
    order: Order,

    /// Command that reaches another host, with its options, such as `ssh -F FILE`
    #[arg(long, value_name = "COMMAND", default_value = "ssh")]
    ssh: String,

    /// Path of tbccl on the other hosts (the path of this program if it exists there, else PATH)
    #[arg(long, value_name = "PATH")]
    tbccl: Option<PathBuf>,

    /// First port for MLX's ring and jaccl backends
    #[arg(long, value_name = "PORT", default_value = "32323")]
    starting_port: u16,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum MapBy {
    Slot,
    Node,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Order {
    Cables,
    File,
}

/// Properties of the host allocation that the rendezvous needs.
#[derive(Debug, Default)]
pub(super) struct HostSetup {
    /// Whether ranks run on other hosts.
    pub(super) has_remote: bool,
    /// Addresses of this host in the hostfile.
    pub(super) local_addresses: Vec<String>,
}

impl HostArgs {
    /// Sets the hosts, the number of ranks and their variables in `spec`.
    pub(super) fn apply(self, ranks: Option<u32>, spec: &mut LaunchSpec) -> Result<HostSetup, CommandError> {
        let Some(mut file) = self.read()? else { return Ok(HostSetup::default()) };
        if self.order == Order::Cables {
            order_by_cables(&mut file, spec.name);
        }
        let order = match self.map_by {
            MapBy::Slot => DealOrder::Slot,
            MapBy::Node => DealOrder::Node,
        };
        let request = Request { ranks, per_host: self.per_host, order, oversubscribe: self.oversubscribe };
        let rank_hosts = allocate(&file.hosts, &request).map_err(CommandError::new)?;
        spec.ranks = u32::try_from(rank_hosts.len()).map_err(CommandError::new)?;
        // The order of precedence is: the user's variables, the host's, the file's.
        let own = std::mem::take(&mut spec.env);
        let env = file.env.iter().map(|(key, value)| (key.into(), value.into()));
        spec.env = tbccl_variables().into_iter().chain(env).collect();
        let configured = |key: &str| {
            spec.env.iter().chain(&own).rev().find(|(known, _)| known == key).map(|(_, value)| value.clone())
        };
        let transport = configured("TBCCL_TRANSPORT");
        let (has_interface, has_cables) =
            (configured("TBCCL_INTERFACE").is_some(), configured("TBCCL_CABLES").is_some());
        let matrix = match configured(devices::VARIABLE) {
            Some(_) => None,
            None => devices::matrix(&file, &rank_hosts, transport.as_deref().and_then(OsStr::to_str)),
        };
        let of_host = |host: &usize| {
            let host = &file.hosts[*host];
            let address = interface(host).filter(|_| !has_interface);
            let interface = address.map(|address| ("TBCCL_INTERFACE".into(), address.into()));
            let cables = cables(host).filter(|_| !has_interface && !has_cables);
            let cables = cables.map(|cables| ("TBCCL_CABLES".into(), cables.into()));
            let own = host.env.iter().map(|(key, value)| (key.into(), value.into()));
            interface.into_iter().chain(cables).chain(own).collect::<Vec<_>>()
        };
        spec.rank_env = rank_hosts.iter().map(|host| [of_host(host), own.clone()].concat()).collect();
        let mlx = mlx::Job { file: &file, rank_hosts: &rank_hosts, port: self.starting_port };
        spec.env.extend(mlx.variables());

        let used: Vec<usize> = (0..file.hosts.len()).filter(|host| rank_hosts.contains(host)).collect();
        let host_of =
            rank_hosts.iter().filter_map(|host| used.iter().position(|known| known == host)).collect();
        let hosts: Vec<HostSpec> =
            used.iter().map(|host| HostSpec::new(file.hosts[*host].name.as_str())).collect();
        let has_remote = hosts.iter().any(|host| !host.local);
        let local_addresses = used
            .iter()
            .zip(&hosts)
            .filter(|(_, host)| host.local)
            .flat_map(|(host, _)| file.hosts[*host].addresses.clone())
            .collect();
        if has_remote && spec.cwd.is_none() {
            spec.cwd = std::env::current_dir().ok();
        }
        if has_remote && transport.is_none() {
            // Set for all ranks, because ranks of this host could otherwise do without the network.
            spec.env.push(("TBCCL_TRANSPORT".into(), "shm+auto".into()));
        }
        let mut plan = Hosts::new(hosts, host_of, this_program()?);
        if spec.hosts.output != Output::Inherited {
            plan.output = spec.hosts.output.clone();
        }
        plan.stdin = spec.hosts.stdin;
        plan.ssh = words(&self.ssh)?;
        plan.tbccl = self.tbccl;
        plan.files = mlx.files();
        plan.files.extend(matrix.map(|matrix| (devices::VARIABLE.to_owned(), matrix)));
        spec.hosts = plan;
        Ok(HostSetup { has_remote, local_addresses })
    }

    fn read(&self) -> Result<Option<Hostfile>, CommandError> {
        named_hosts(self.hostfile.as_deref(), self.hosts.as_deref())
    }
}

/// Returns the hosts of `--hostfile`, or else those of `--hosts`, if the user has named any.
pub(in crate::commands) fn named_hosts(
    hostfile: Option<&Path>,
    list: Option<&str>,
) -> Result<Option<Hostfile>, CommandError> {
    match (hostfile, list) {
        (Some(path), _) => read(path).map(Some),
        (None, Some(list)) => Hostfile::from_list(list)
            .map(Some)
            .map_err(|e| CommandError::new(format_args!("--hosts {list}:{e}"))),
        (None, None) => Ok(None),
    }
}

/// Returns the address at which the hostfile says that a host is met, for TCP connections.
fn interface(host: &Host) -> Option<&str> {
    host.addresses.first().map(String::as_str).filter(|address| is_of_network(address))
}

/// Returns the selection of a host's cables, if the hostfile has addresses for it: the cables that are found,
/// and the interfaces of all addresses but the first. The first one tells where the host is met, and not that
/// its cables lie idle.
fn cables(host: &Host) -> Option<String> {
    let further = host.addresses.iter().skip(1).filter(|address| is_of_network(address));
    let names: Vec<&str> = std::iter::once("auto").chain(further.map(String::as_str)).collect();
    (names.len() > 1 || interface(host).is_some()).then(|| names.join(","))
}

/// Whether a text of the hostfile is an address on a network. Host names are not interfaces.
fn is_of_network(address: &str) -> bool {
    address.parse::<std::net::IpAddr>().is_ok_and(|ip| !ip.is_loopback())
}

fn read(path: &Path) -> Result<Hostfile, CommandError> {
    let bytes = std::fs::read(path).map_err(|e| {
        CommandError::new(format_args!("the hostfile {}: {e}; check --hostfile", path.display()))
    })?;
    Hostfile::parse(&bytes).map_err(|e| CommandError::new(format_args!("{}:{e}", path.display())))
}

/// Reorders the hosts so that a ring of them follows the cables, if such an order exists and differs from the
/// file's.
fn order_by_cables(file: &mut Hostfile, name: &str) {
    let Some(devices) = &file.devices else { return };
    let wiring = Wiring::from_matrix(devices);
    let Some(order) = wiring.ring_order().filter(|order| !order.is_sorted()) else { return };
    let hosts: Vec<Host> = order.iter().map(|host| file.hosts[*host as usize].clone()).collect();
    let names: Vec<&str> = hosts.iter().map(|host| host.name.as_str()).collect();
    let names = names.join(", ");
    eprint_line(&format!(
        "{name}: hosts are numbered along the cables: {names}; --order file keeps the file's order"
    ));
    file.devices = Some(devices.reordered(&order));
    file.hosts = hosts;
}

fn eprint_line(text: &str) {
    use std::io::Write;
    let _ = std::io::stderr().write_all(format!("{text}\n").as_bytes());
}

/// Returns the `TBCCL_*` variables of this environment, for other hosts, without the identity that this
/// process has if it is a rank itself.
fn tbccl_variables() -> Vec<(OsString, OsString)> {
    let is_identity = |key: &OsString| tbccl::IDENTITY.iter().any(|name| key == name);
    let is_ours = |key: &OsString| key.to_str().is_some_and(|key| key.starts_with("TBCCL_"));
    std::env::vars_os().filter(|(key, _)| is_ours(key) && !is_identity(key)).collect()
}

/// Splits a command into words as a shell does.
fn words(command: &str) -> Result<Vec<OsString>, CommandError> {
    let words = shlex::split(command).filter(|words| !words.is_empty());
    let words = words.ok_or_else(|| {
        CommandError::new(format_args!(
            "--ssh {command:?}: a command was expected, e.g. `ssh -p 2222`; check the quotation marks"
        ))
    })?;
    Ok(words.into_iter().map(OsString::from).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_addresses_but_the_first_are_cables_whatever_names_stand_between_them() {
        let of = |addresses: &[&str]| {
            let addresses = addresses.iter().map(|address| (*address).to_owned()).collect();
            let host = Host { addresses, ..Host::default() };
            (interface(&host).map(str::to_owned), cables(&host))
        };
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(of(&[]), (None, None));
        assert_eq!(of(&["10.0.0.1"]), (some("10.0.0.1"), some("auto")));
        let all = of(&["10.0.0.1", "10.0.1.1", "mac0.local", "fd00::1", "127.0.0.1"]);
        assert_eq!(all, (some("10.0.0.1"), some("auto,10.0.1.1,fd00::1")));
        assert_eq!(of(&["mac0.local", "10.0.1.1"]), (None, some("auto,10.0.1.1")));
        assert_eq!(of(&["mac0.local"]), (None, None));
    }
}
