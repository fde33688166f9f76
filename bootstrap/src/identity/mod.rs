//! Identity of this process: its rank, the number of ranks, and their rendezvous.
//!
//! Launchers set environment variables ([`launchers`]). All of them tell a process its rank; `tbccl run` also
//! tells the address of the rendezvous. With other launchers, rank 0 opens the rendezvous in its own process
//! ([`resolve`]). The other ranks learn its address from PyTorch's [`store`] under torchrun, otherwise from a
//! host and port that are agreed beforehand (`TBCCL_ROOT`), or derived from a step of Slurm ([`slurm`]).
//!
//! The environment is read once, before any socket is opened, into [`LaunchInfo`]. [`LaunchInfo::resolve`]
//! turns it into an [`Identity`].

#[cfg(any(test, feature = "fuzzing"))]
mod harness;
mod launchers;
mod mlx;
mod resolve;
mod slurm;
mod store;
#[cfg(test)]
mod tests;

#[cfg(any(test, feature = "fuzzing"))]
pub use harness::feed_store_client;
pub use resolve::Resolved;

use crate::{
    Secret,
    address::{Address, host_and_port},
    connect::ConnectSpec,
    environment::{Vars, configured_secret, secret_of_env},
    error::{Error, Result},
};
use launchers::{LaunchedRank, detect, find_launcher};
use slurm::MeetingPlace;
use std::{
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};
use topology::Rank;

/// How long a rank tries to reach a rendezvous that must be running already.
const RETRY: Duration = Duration::from_secs(3);

/// Number of rendezvous in this process through a store, or of a Slurm step. Equal on all ranks.
static NAMED_RENDEZVOUS: AtomicU32 = AtomicU32::new(0);

/// Rank and rendezvous of this process.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Rank of this process.
    rank: u32,
    /// Number of ranks of the job.
    size: u32,
    /// Rendezvous of the ranks.
    rendezvous: ConnectSpec,
    /// Whether the rendezvous runs in this process.
    hosts_rendezvous: bool,
    /// The first job, if the ranks come from one.
    parent: Option<Parent>,
}

/// A job whose ranks come from an earlier job.
#[derive(Clone, Debug)]
struct Parent {
    /// Name of the new job.
    job: String,
    /// Ranks of the members in the first job.
    world_ranks: Arc<WorldRanks>,
}

/// Ranks in the first job, which files about ranks refer to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorldRanks {
    /// Rank in the first job, by rank in this job.
    by_rank: Vec<u32>,
    /// Number of ranks of the first job.
    size: u32,
}

impl WorldRanks {
    /// Returns the rank in the first job of each rank in this job, by rank in this job.
    #[must_use]
    pub fn by_rank(&self) -> &[u32] {
        &self.by_rank
    }

    /// Returns the number of ranks of the first job.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Returns the entries of some members, in the order given.
    ///
    /// # Panics
    /// If a member is not a rank of this job.
    pub fn of_members(&self, members: &[Rank]) -> WorldRanks {
        WorldRanks {
            by_rank: members.iter().map(|member| self.by_rank[member.index()]).collect(),
            size: self.size,
        }
    }
}

impl Identity {
    /// Creates the identity of a rank of a first job.
    #[must_use]
    pub fn new(rank: u32, size: u32, rendezvous: ConnectSpec, hosts_rendezvous: bool) -> Identity {
        Identity { rank, size, rendezvous, hosts_rendezvous, parent: None }
    }

    /// Returns the same identity for a later job, which has a name and whose ranks come from a first job.
    #[must_use]
    pub fn with_parent(self, job: String, world_ranks: WorldRanks) -> Identity {
        Identity { parent: Some(Parent { job, world_ranks: Arc::new(world_ranks) }), ..self }
    }

    /// Returns the rank of this process.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Returns the number of ranks of the job.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Returns the rendezvous of the ranks.
    #[must_use]
    pub fn rendezvous(&self) -> &ConnectSpec {
        &self.rendezvous
    }

    /// Whether the rendezvous runs in this process.
    #[must_use]
    pub fn hosts_rendezvous(&self) -> bool {
        self.hosts_rendezvous
    }

    /// Whether the ranks come from an earlier job.
    #[must_use]
    pub fn has_parent(&self) -> bool {
        self.parent.is_some()
    }

    /// Returns the name of a job whose ranks come from an earlier one; empty for a first job.
    #[must_use]
    pub fn job(&self) -> &str {
        self.parent.as_ref().map_or("", |parent| &parent.job)
    }

    /// Returns the ranks' numbers in the first job.
    pub fn world_ranks(&self) -> Arc<WorldRanks> {
        match &self.parent {
            Some(parent) => Arc::clone(&parent.world_ranks),
            None => Arc::new(WorldRanks { by_rank: (0..self.size).collect(), size: self.size }),
        }
    }
}

/// Rank, size and way to the rendezvous, as a launcher sets them.
#[derive(Clone, Debug)]
pub struct LaunchInfo {
    rank: u32,
    size: u32,
    discovery: Discovery,
    /// Whether every process that reaches the rendezvous can join.
    is_open: bool,
}

/// How a rank finds the rendezvous.
#[derive(Clone, Debug)]
enum Discovery {
    /// A running rendezvous.
    Known(ConnectSpec),
    /// This is the only rank.
    Single,
    /// Rank 0 opens the rendezvous for ranks of this host and user. All ranks derive the socket's name from
    /// the port; nothing listens on that port.
    LocalPort { host: String, port: u16 },
    /// Rank 0 opens the rendezvous for the tasks of a Slurm step, all of which are on this host. They derive
    /// the socket's name from the step (`CLUSTER/JOB.STEP/RENDEZVOUS`).
    LocalStep { step: String, secret: Option<Secret> },
    /// Rank 0 opens the rendezvous on this port. The other ranks know its host by this name.
    Root { host: String, port: u16, secret: Secret },
    /// Rank 0 opens the rendezvous on any port and publishes it through PyTorch's store at this host and
    /// port.
    Store { host: String, port: u16, key: String, secret: Option<Secret> },
}

impl LaunchInfo {
    /// Returns the rank of this process.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Reads the environment variables of this process.
    ///
    /// # Errors
    /// [`Error::Rendezvous`] if a variable is missing or malformed. Names it, and says how to start the
    /// program.
    pub fn from_env() -> Result<LaunchInfo> {
        let mut info = LaunchInfo::from_vars(&Vars::from_process()).map_err(Error::Rendezvous)?;
        // Entries of earlier communicators remain in a store. The socket of an earlier one may still be open
        // when the fastest rank has left it and joins again.
        if let Discovery::Store { key: name, .. } | Discovery::LocalStep { step: name, .. } =
            &mut info.discovery
        {
            *name = format!("{name}/{}", NAMED_RENDEZVOUS.fetch_add(1, Relaxed));
        }
        Ok(info)
    }

    fn from_vars(vars: &Vars) -> Result<LaunchInfo, String> {
        let launched = detect(vars)?;
        let discovery = discovery_of(vars, &launched)?;
        Ok(LaunchInfo { rank: launched.rank, size: launched.size, discovery, is_open: false })
    }

    /// Describes one of several ranks that meet at an address of rank 0, for programs that pass such an
    /// address on by means of their own.
    ///
    /// Rank 0 may name all addresses of its host (0.0.0.0), and other ranks different ones. Without a
    /// configured secret, ranks that meet at a loopback address know each other by their user. Other ranks
    /// use a secret that everyone knows: the job is open ([`LaunchInfo::is_open`]).
    ///
    /// # Errors
    /// [`Error::Rendezvous`] if the configured secret is malformed.
    pub fn at_root(rank: u32, size: u32, host: &str, port: u16) -> Result<LaunchInfo> {
        LaunchInfo::at_root_with(rank, size, (host, port), secret_of_env()?)
    }

    fn at_root_with(
        rank: u32,
        size: u32,
        (host, port): (&str, u16),
        secret: Option<Secret>,
    ) -> Result<LaunchInfo> {
        let host = host.to_owned();
        let is_open = secret.is_none() && !is_loopback(&host);
        let discovery = match secret {
            None if is_loopback(&host) => Discovery::LocalPort { host, port },
            None => Discovery::Root { host, port, secret: public_secret(port)? },
            Some(secret) => Discovery::Root { host, port, secret },
        };
        Ok(LaunchInfo { rank, size, discovery, is_open })
    }

    /// Whether the ranks may be on several hosts, as far as this rank knows: not if they meet by a name that
    /// only this host knows.
    #[must_use]
    pub fn may_span_hosts(&self) -> bool {
        match &self.discovery {
            Discovery::Known(rendezvous) => rendezvous.has_remote_address(),
            Discovery::Root { .. } | Discovery::Store { .. } => true,
            Discovery::Single | Discovery::LocalPort { .. } | Discovery::LocalStep { .. } => false,
        }
    }

    /// Whether every process that reaches the rendezvous can join, since the ranks have no secret.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.is_open
    }
}

/// Returns the secret of jobs that have none. It keeps ranks of other versions and other programs out, and
/// nobody else.
fn public_secret(port: u16) -> Result<Secret> {
    let derived = Secret::from_bytes([0; Secret::BYTES]).derive(format!("open at port {port}").as_bytes());
    derived.map_err(|e| Error::Rendezvous(e.to_string()))
}

/// Returns the launcher that the environment names: `tbccl run`, `mlx.launch`, `torchrun`, `Open MPI` and so
/// on.
///
/// `None` means that no launcher started this process, so [`LaunchInfo::from_env`] would fail.
#[must_use]
pub fn launcher_of_env() -> Option<&'static str> {
    find_launcher(&Vars::from_process())
}

/// Returns the number of ranks that the launcher set; `None` if it is missing or malformed.
#[must_use]
pub fn ranks_of_env() -> Option<u32> {
    detect(&Vars::from_process()).ok().map(|launched| launched.size)
}

fn discovery_of(vars: &Vars, launched: &LaunchedRank) -> Result<Discovery, String> {
    let secret = configured_secret(vars)?;
    if let Some(text) = vars.get("TBCCL_BOOTSTRAP") {
        let addresses = Address::parse_list(text).map_err(|why| format!("TBCCL_BOOTSTRAP: {why}"))?;
        return Ok(Discovery::Known(ConnectSpec {
            addresses,
            own: None,
            secret,
            timeout: RETRY,
            rendezvous_host: None,
        }));
    }
    if launched.size == 1 {
        return Ok(Discovery::Single);
    }
    if vars.get("TBCCL_RANK").is_some() && vars.get("TBCCL_ROOT").is_none() {
        return Err(
            "TBCCL_BOOTSTRAP is not set: start the program with `tbccl run -n RANKS -- PROGRAM`, or set \
                    TBCCL_ROOT=HOST:PORT on all ranks, with a free port of rank 0's host"
                .into(),
        );
    }
    if vars.get("TBCCL_ROOT").is_none() && has_store(vars) {
        let (host, port) = master_address(vars)?;
        let run = vars.get("TORCHELASTIC_RUN_ID").unwrap_or("none");
        let restarts = vars.get("TORCHELASTIC_RESTART_COUNT").unwrap_or("0");
        let key = format!("tbccl/{run}/{restarts}/rendezvous");
        return Ok(Discovery::Store { host, port, key, secret });
    }
    let LaunchedRank { launcher, rank, size } = *launched;
    let place = match vars.get("TBCCL_ROOT") {
        Some(_) => None,
        None => slurm::meeting_place(vars, launcher, rank, size)?,
    };
    let (host, port) = match place {
        Some(MeetingPlace::OnlyNode(step)) => return Ok(Discovery::LocalStep { step, secret }),
        Some(MeetingPlace::FirstNode { host, port }) => (host, port),
        None => root_address(vars, launched)?,
    };
    let Some(secret) = secret else {
        if is_loopback(&host) {
            return Ok(Discovery::LocalPort { host, port });
        }
        return Err(missing_secret(launched, &host, port));
    };
    Ok(Discovery::Root { host, port, secret })
}

/// Returns the error of a rank that has no secret and meets the others at an address of the network.
fn missing_secret(launched: &LaunchedRank, host: &str, port: u16) -> String {
    let LaunchedRank { launcher, rank, size } = launched;
    let passed_on =
        if *launcher == slurm::NAME { "; srun passes its own environment on to them" } else { "" };
    format!(
        "{launcher} says that this is rank {rank} of {size}, and the ranks meet at {host}:{port}, but \
         TBCCL_SECRET is not set: set it to the same 64 hexadecimal digits on all ranks (`openssl rand -hex \
         32` makes some{passed_on}), or TBCCL_SECRET_FILE to a file with them"
    )
}

/// Whether torchrun's agent runs a store on `MASTER_PORT`.
fn has_store(vars: &Vars) -> bool {
    let says = |name: &str| vars.get(name).map(str::to_ascii_lowercase);
    match says("TORCHELASTIC_USE_AGENT_STORE").as_deref() {
        Some(text) => matches!(text, "true" | "1"),
        None => vars.get("TORCHELASTIC_RUN_ID").is_some(),
    }
}

fn master_address(vars: &Vars) -> Result<(String, u16), String> {
    let missing =
        |name: &str| format!("{name} is not set, and RANK and WORLD_SIZE are: torchrun sets all of them");
    let host = vars.get("MASTER_ADDR").ok_or_else(|| missing("MASTER_ADDR"))?;
    let port = vars.get("MASTER_PORT").ok_or_else(|| missing("MASTER_PORT"))?;
    let number = port.parse().ok().filter(|port| *port != 0);
    Ok((host.to_owned(), number.ok_or_else(|| format!("MASTER_PORT={port} is not a port"))?))
}

/// Returns the host of rank 0 and the port that rank 0 opens.
fn root_address(vars: &Vars, launched: &LaunchedRank) -> Result<(String, u16), String> {
    if let Some(text) = vars.get("TBCCL_ROOT") {
        let full = match text.strip_prefix(':') {
            Some(port) => format!("{}:{port}", host_of_rank_0(vars).unwrap_or_default()),
            None => text.to_owned(),
        };
        return host_and_port(&full).ok_or_else(|| {
            format!("TBCCL_ROOT={text} is not HOST:PORT, with the host of rank 0 and a free port there")
        });
    }
    if [mlx::NAME, mlx::JACCL_NAME].contains(&launched.launcher) {
        return mlx::root_address(vars);
    }
    // PyTorch programs that torchrun did not start open the master port themselves, so tbccl uses the next
    // one.
    if let (Ok((host, port)), "torchrun") = (master_address(vars), launched.launcher) {
        let next = port.checked_add(1).ok_or_else(|| {
            "MASTER_PORT=65535, and the ranks of tbccl meet on the next port: choose a lower one".to_owned()
        })?;
        return Ok((host, next));
    }
    let host = host_of_rank_0(vars).unwrap_or_else(|| "HOST".into());
    Err(format!(
        "{} says that this is rank {} of {}, but not where rank 0 is: set TBCCL_ROOT={host}:PORT on all \
         ranks, with the host of rank 0 and a free port there, and TBCCL_SECRET to the same 64 hexadecimal \
         digits; or start the program with `tbccl run`",
        launched.launcher, launched.rank, launched.size
    ))
}

/// Whether the host name always means this host, so that all ranks are here.
fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// Returns the host of rank 0, if the launcher sets it.
fn host_of_rank_0(vars: &Vars) -> Option<String> {
    if let Some(host) = vars.get("MASTER_ADDR") {
        return Some(host.to_owned());
    }
    slurm::first_node(vars)
}
