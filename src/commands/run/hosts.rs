//! Which hosts a job runs on, from the command line and a hostfile.

use super::{Failed, devices, mlx, this_program};
use crate::launch::{HostSpec, Hosts, LaunchSpec, Place};
use std::{
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
};
use topology::{By, Host, Hostfile, Request, Wiring, allocate};

/// Options about hosts.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Hosts")]
pub(super) struct HostArgs {
    /// File of the hosts: MLX's JSON, Open MPI's lines, or TOML as in configs/hosts; the format is recognized
    #[arg(long, visible_alias = "machinefile", value_name = "FILE")]
    hostfile: Option<PathBuf>,

    /// The hosts, as a list: a,b:2,c
    #[arg(long, visible_alias = "host", short = 'H', value_name = "LIST", conflicts_with = "hostfile")]
    hosts: Option<String>,

    /// Ranks of each host, instead of its slots
    #[arg(long, value_name = "K", value_parser = super::arguments::ranks)]
    per_host: Option<u32>,

    /// Order of ranks: fill a host before the next (slot), or one to each in turn (node)
    #[arg(long, value_name = "HOW", default_value = "slot")]
    map_by: MapBy,

    /// Let hosts have more ranks than they have slots, up to their maximum
    #[arg(long)]
    oversubscribe: bool,

    /// Order of hosts: along the cables (cables), or as in the file (file)
    #[arg(long, value_name = "HOW", default_value = "cables")]
    order: Order,

    /// The command that reaches another host, with its options, as `ssh -F FILE`
    #[arg(long, value_name = "COMMAND", default_value = "ssh")]
    ssh: String,

    /// Path of tbccl on the other hosts (the path here if it exists there, or else PATH)
    #[arg(long, value_name = "PATH")]
    tbccl: Option<PathBuf>,

    /// The first port for MLX's ring and jaccl backends
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

/// Other hosts of the job, and this host's addresses in the file.
#[derive(Debug, Default)]
pub(super) struct Across {
    /// Whether ranks run on other hosts.
    pub(super) others: bool,
    /// The addresses of this host in the file.
    pub(super) own_addresses: Vec<String>,
}

impl HostArgs {
    /// Sets where the ranks of a job run, and how many there are.
    pub(super) fn place(self, ranks: Option<u32>, spec: &mut LaunchSpec) -> Result<Across, Failed> {
        let Some(mut file) = self.read()? else { return Ok(Across::default()) };
        if self.order == Order::Cables {
            follow_cables(&mut file, spec.name);
        }
        let by = match self.map_by {
            MapBy::Slot => By::Slot,
            MapBy::Node => By::Node,
        };
        let request = Request { ranks, per_host: self.per_host, by, oversubscribe: self.oversubscribe };
        let places = allocate(&file.hosts, &request).map_err(Failed::new)?;
        spec.ranks = u32::try_from(places.len()).map_err(Failed::new)?;
        // A user's own variables count more than a file's, and a host's more than the file's.
        let own = std::mem::take(&mut spec.env);
        let env = file.env.iter().map(|(key, value)| (key.into(), value.into()));
        spec.env = options_of_ours().into_iter().chain(env).collect();
        let stated = |key: &str| {
            spec.env.iter().chain(&own).rev().find(|(known, _)| known == key).map(|(_, value)| value.clone())
        };
        let (transport, has_interface) = (stated("TBCCL_TRANSPORT"), stated("TBCCL_INTERFACE").is_some());
        let matrix = match stated(devices::VARIABLE) {
            Some(_) => None,
            None => devices::matrix(&file, &places, transport.as_deref().and_then(OsStr::to_str)),
        };
        let of_host = |at: &usize| {
            let host = &file.hosts[*at];
            let address = interface(host).filter(|_| !has_interface);
            let interface = address.map(|address| ("TBCCL_INTERFACE".into(), address.into()));
            let own = host.env.iter().map(|(key, value)| (key.into(), value.into()));
            interface.into_iter().chain(own).collect::<Vec<_>>()
        };
        spec.rank_env = places.iter().map(|at| [of_host(at), own.clone()].concat()).collect();
        let mlx = mlx::Job { file: &file, places: &places, port: self.starting_port };
        spec.env.extend(mlx.variables());

        let used: Vec<usize> = (0..file.hosts.len()).filter(|at| places.contains(at)).collect();
        let host_of = places.iter().filter_map(|at| used.iter().position(|known| known == at)).collect();
        let hosts: Vec<HostSpec> =
            used.iter().map(|at| HostSpec::new(file.hosts[*at].name.as_str())).collect();
        let others = hosts.iter().any(|host| !host.local);
        let own_addresses = used
            .iter()
            .zip(&hosts)
            .filter(|(_, host)| host.local)
            .flat_map(|(at, _)| file.hosts[*at].addresses.clone())
            .collect();
        if others && spec.cwd.is_none() {
            spec.cwd = std::env::current_dir().ok();
        }
        if others && transport.is_none() {
            // Said to all, since ranks of this host find the rendezvous without a network.
            spec.env.push(("TBCCL_TRANSPORT".into(), "shm+auto".into()));
        }
        let mut plan = Hosts::new(hosts, host_of, this_program()?);
        if let Place::Hosts(here) = &spec.place {
            (plan.output, plan.stdin) = (here.output.clone(), here.stdin);
        }
        plan.ssh = words(&self.ssh)?;
        plan.tbccl = self.tbccl;
        plan.files = mlx.files();
        plan.files.extend(matrix.map(|matrix| (devices::VARIABLE.to_owned(), matrix)));
        spec.place = Place::Hosts(plan);
        Ok(Across { others, own_addresses })
    }

    fn read(&self) -> Result<Option<Hostfile>, Failed> {
        match (&self.hostfile, &self.hosts) {
            (Some(path), _) => read(path).map(Some),
            (None, Some(list)) => Hostfile::from_list(list)
                .map(Some)
                .map_err(|e| Failed::new(format_args!("--hosts {list}:{e}"))),
            (None, None) => Ok(None),
        }
    }
}

/// The address that a host's file gives it, for connections over TCP. Names are for others to look up.
fn interface(host: &Host) -> Option<&str> {
    let address = host.addresses.first()?;
    address.parse::<std::net::IpAddr>().is_ok_and(|ip| !ip.is_loopback()).then_some(address.as_str())
}

fn read(path: &Path) -> Result<Hostfile, Failed> {
    let bytes = std::fs::read(path)
        .map_err(|e| Failed::new(format_args!("the hostfile {}: {e}; check --hostfile", path.display())))?;
    Hostfile::parse(&bytes).map_err(|e| Failed::new(format_args!("{}:{e}", path.display())))
}

/// Numbers the hosts so that a ring of them follows the cables, if such an order exists and the file has
/// another.
fn follow_cables(file: &mut Hostfile, name: &str) {
    let Some(devices) = &file.devices else { return };
    let wiring = Wiring::from_matrix(devices);
    let Some(order) = wiring.ring_order().filter(|order| !order.is_sorted()) else { return };
    let hosts: Vec<Host> = order.iter().map(|at| file.hosts[*at as usize].clone()).collect();
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

/// Returns the options in this environment, for the other hosts, without this process's identity if it is a
/// rank itself.
fn options_of_ours() -> Vec<(OsString, OsString)> {
    let is_identity = |key: &OsString| tbccl::IDENTITY.iter().any(|name| key == name);
    let is_ours = |key: &OsString| key.to_str().is_some_and(|key| key.starts_with("TBCCL_"));
    std::env::vars_os().filter(|(key, _)| is_ours(key) && !is_identity(key)).collect()
}

/// A command in words, as a shell reads it.
fn words(command: &str) -> Result<Vec<OsString>, Failed> {
    let words = shlex::split(command).filter(|words| !words.is_empty());
    let words = words.ok_or_else(|| {
        Failed::new(format_args!(
            "--ssh {command:?}: a command was expected, e.g. `ssh -p 2222`; check the quotation marks"
        ))
    })?;
    Ok(words.into_iter().map(OsString::from).collect())
}
