//! Jobs that a program describes, without a launcher: rank, size, rendezvous and RDMA devices.
//!
//! A program of JACCL knows rank 0's address, or has a function that exchanges bytes between all ranks. In
//! the first case rank 0 opens the rendezvous there. In the second one it creates a unique id, which the
//! program passes on.
//!
//! A job without a secret on several hosts is open: JACCL knows no secrets, and its programs must work
//! unchanged. Rank 0 says so on stderr, once per process.

use crate::{
    boundary::{Failure, Outcome, register_fork_handler},
    world::{World, has_timeout},
};
use std::{
    sync::{
        Once,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};
use tbccl::{
    Communicator, Config, DeviceMatrix, Error, Rank, Transport, UniqueId,
    bootstrap::LaunchInfo,
    events::{notice, target},
};

/// Default time that ranks wait for each other at the start: people start ranks by hand on several hosts.
const JOIN_TIMEOUT: Duration = Duration::from_secs(120);

/// Pause before a rank tries again to join where it has left a job.
const REJOIN_PAUSE: Duration = Duration::from_millis(200);

/// Variable with a device matrix that counts before the program's.
const DEVICES_VARIABLE: &str = "TBCCL_IBV_DEVICES";

/// A rank of a job, as its program describes it.
#[derive(Debug)]
pub struct JobSpec {
    /// Number of this rank.
    pub rank: u32,
    /// Number of ranks.
    pub size: u32,
    /// Meeting place of the ranks.
    pub rendezvous: Rendezvous,
    /// RDMA devices between each two ranks; without them devices are discovered.
    pub devices: Option<DeviceMatrix>,
}

/// Place where the ranks of a job meet.
#[derive(Debug)]
pub enum Rendezvous {
    /// Address of rank 0, which opens the rendezvous there.
    Root {
        /// Host name or address; 0.0.0.0 on rank 0 stands for all of its addresses.
        host: String,
        /// Free port of that host.
        port: u16,
    },
    /// Unique id that rank 0 has created.
    Id(UniqueId),
}

impl World {
    /// Joins the job that a program describes, and waits for the other ranks.
    ///
    /// # Errors
    /// Those of joining a job, with their remedies.
    pub fn join_job(spec: JobSpec) -> Outcome<World> {
        register_fork_handler();
        let JobSpec { rank, size, rendezvous, devices } = spec;
        if rank >= size {
            return Err(Failure::usage(format!("rank {rank} is not one of 0..{size}")));
        }
        let mut config = Config::from_env()?;
        if !has_timeout() {
            config.timeout = JOIN_TIMEOUT;
        }
        let is_mesh = devices.as_ref().is_none_or(connects_all);
        if let Some(devices) = devices.filter(|_| std::env::var_os(DEVICES_VARIABLE).is_none()) {
            config.verbs.named = devices.into();
        }
        let use_ring = |config: &mut Config| {
            // By itself the runtime takes TCP where RDMA does not connect all hosts, as in a ring.
            if !is_mesh && config.transport == Transport::Auto {
                config.transport = Transport::MixedVerbs;
            }
        };
        let communicator = match rendezvous {
            Rendezvous::Root { host, port } => {
                let info = LaunchInfo::at_root(rank, size, &host, port).map_err(Error::from)?;
                if info.may_span_hosts() {
                    use_ring(&mut config);
                }
                if info.is_open() && rank == 0 {
                    say_open(port);
                }
                join_at(&info, rank, &config)?
            }
            Rendezvous::Id(id) => {
                use_ring(&mut config);
                Communicator::from_unique_id(&id, rank, size, &config)?
            }
        };
        World::of(communicator, config)
    }
}

/// Whether a device of each rank leads to each other one.
fn connects_all(devices: &DeviceMatrix) -> bool {
    let ranks = || (0..devices.ranks()).map(Rank);
    ranks().all(|from| ranks().all(|to| from == to || !devices.rails(from, to).is_empty()))
}

/// Joins at an address of rank 0.
///
/// A program may make one group after the other at the same address. Another rank may be late then: until
/// rank 0 has left the first job, its rendezvous refuses ranks that it knows.
fn join_at(info: &LaunchInfo, rank: u32, config: &Config) -> Outcome<Communicator> {
    static JOINED: AtomicBool = AtomicBool::new(false);
    let deadline = Instant::now() + config.timeout;
    loop {
        match Communicator::from_launch_info(info, config) {
            Ok(communicator) => {
                JOINED.store(true, Relaxed);
                return Ok(communicator);
            }
            Err(Error::Bootstrap(_)) if rank > 0 && JOINED.load(Relaxed) && Instant::now() < deadline => {
                thread::sleep(REJOIN_PAUSE);
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Says that everyone can join.
fn say_open(port: u16) {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        notice!(
            target::MLX,
            None,
            "this job has no secret, as with JACCL: all that can reach port {port} of rank 0 can join \
             it or end it; set TBCCL_SECRET_FILE on all ranks to prevent that (docs/security.md)"
        );
    });
}
