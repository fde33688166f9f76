//! The job that this process is a rank of, from `MPI_Init` to `MPI_Finalize`, and its groups by handle.
//!
//! The environment tells the rank, as for any program of tbccl. A process without a launcher is a world of
//! one rank, as with Open MPI.
//!
//! MLX programs wait for people: one rank serves requests while the others wait for it in a collective.
//! Therefore the default timeout of calls is a day; `TBCCL_TIMEOUT` overrides it. Ranks notice dead peers at
//! once all the same.

use crate::{
    boundary::{Failure, Outcome, register_fork_handler},
    group::{Group, GroupOptions},
    objects::{self, Handle},
    p2p::WorldP2p,
};
use std::{
    collections::HashMap,
    ffi::{CStr, CString},
    sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
    time::Duration,
};
use tbccl::{Communicator, Config, launcher_of_env, ranks_of_env};

/// Default time that a call may wait for live peers.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);

/// Variable that overrides the default timeout.
const TIMEOUT_VARIABLE: &str = "TBCCL_TIMEOUT";

/// Variables that tell the number of ranks on this host.
const LOCAL_SIZE_VARIABLES: [&str; 2] = ["TBCCL_LOCAL_SIZE", "LOCAL_WORLD_SIZE"];

/// State of this process.
static STATE: RwLock<State> = RwLock::new(State::Uninitialized);

#[derive(Debug)]
enum State {
    Uninitialized,
    Running(World),
    Finalized,
}

/// The job and its groups.
#[derive(Debug)]
struct World {
    p2p: Arc<WorldP2p>,
    groups: HashMap<usize, Arc<Group>>,
    /// Number of groups created by splits.
    created: usize,
}

/// Handles of groups are greater than this number. No object has such an address.
const FIRST_HANDLE: usize = 0x2000;

fn state() -> RwLockReadGuard<'static, State> {
    STATE.read().unwrap_or_else(PoisonError::into_inner)
}

fn state_mut() -> RwLockWriteGuard<'static, State> {
    STATE.write().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    fn world(&self) -> Outcome<&World> {
        match self {
            State::Running(world) => Ok(world),
            State::Uninitialized => Err(Failure::usage("MPI_Init has not been called")),
            State::Finalized => Err(finalized()),
        }
    }

    fn world_mut(&mut self) -> Outcome<&mut World> {
        match self {
            State::Running(world) => Ok(world),
            State::Uninitialized => Err(Failure::usage("MPI_Init has not been called")),
            State::Finalized => Err(finalized()),
        }
    }
}

fn finalized() -> Failure {
    Failure::usage("MPI_Finalize has been called; no MPI call is possible after it")
}

/// Joins the job.
pub(crate) fn init() -> Outcome {
    let mut state = state_mut();
    match *state {
        State::Uninitialized => {}
        State::Running(_) => return Err(Failure::usage("it has been called before")),
        State::Finalized => return Err(finalized()),
    }
    register_fork_handler();
    *state = State::Running(World::join()?);
    Ok(())
}

/// Leaves the job, and gives up calls and messages that are still in progress.
pub(crate) fn finalize() -> Outcome {
    let previous = std::mem::replace(&mut *state_mut(), State::Finalized);
    if let State::Running(World { p2p, groups, .. }) = previous {
        p2p.finish();
        drop(p2p);
        // Dropping the groups tells the ranks that wait for this one in any group's call.
        drop(groups);
    }
    Ok(())
}

/// Whether this process is a rank of a job now.
pub(crate) fn is_running() -> bool {
    matches!(*state(), State::Running(_))
}

/// Returns the launcher whose variables this process has.
pub(crate) fn launcher() -> Option<&'static CStr> {
    static NAME: OnceLock<Option<CString>> = OnceLock::new();
    NAME.get_or_init(|| CString::new(launcher_of_env()?).ok()).as_deref()
}

/// Returns the group of a handle.
#[inline]
pub(crate) fn group(handle: Handle) -> Outcome<Arc<Group>> {
    let state = state();
    let found = state.world()?.groups.get(&(handle as usize));
    found.cloned().ok_or_else(|| Failure::usage("not a communicator, or one that was freed"))
}

/// Returns the point-to-point messages of the job.
pub(crate) fn p2p() -> Outcome<Arc<WorldP2p>> {
    Ok(Arc::clone(&state().world()?.p2p))
}

/// Adds a group, and returns its handle.
pub(crate) fn register(group: Group) -> Outcome<Handle> {
    let mut state = state_mut();
    let world = state.world_mut()?;
    world.created += 1;
    let number = FIRST_HANDLE + world.created;
    world.groups.insert(number, Arc::new(group));
    Ok(std::ptr::without_provenance_mut(number))
}

/// Removes a group. The group ends with its last call in progress.
pub(crate) fn free(handle: Handle) -> Outcome {
    let number = handle as usize;
    if number == objects::ompi_mpi_comm_world.handle() {
        return Err(Failure::usage("the world is freed by MPI_Finalize"));
    }
    let mut state = state_mut();
    // `MPI_Finalize` has freed all groups.
    let Ok(world) = state.world_mut() else { return Ok(()) };
    let removed = world.groups.remove(&number);
    drop(state);
    removed.map(drop).ok_or_else(|| Failure::usage("not a communicator, or one that was freed"))
}

/// Turns spinning off if this host has fewer than two cores per rank.
///
/// A rank of MLX has two threads that take turns: the program's and the stream's. Without a core for each, a
/// thread that waits for a peer must yield at once: the peer's other thread may need the core.
fn without_spinning_if_oversubscribed(mut config: Config) -> Config {
    let local_size =
        LOCAL_SIZE_VARIABLES.iter().find_map(|name| std::env::var(name).ok()?.parse::<usize>().ok());
    let ranks = local_size.or_else(|| ranks_of_env().map(|ranks| ranks as usize)).unwrap_or(1);
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    if config.polling.spin_polls.is_some() || 2 * ranks <= cores {
        return config;
    }
    config.polling.spin_polls = Some(0);
    config
}

impl World {
    fn join() -> Outcome<World> {
        let config = without_spinning_if_oversubscribed(Config::from_env()?);
        let timeout =
            if std::env::var_os(TIMEOUT_VARIABLE).is_some() { config.timeout } else { DEFAULT_TIMEOUT };
        let communicator = match launcher_of_env() {
            Some(_) => Communicator::from_env_with(&config)?,
            None => Communicator::local(1, &config)?
                .pop()
                .ok_or_else(|| Failure::usage("a world of one rank has no communicator"))?,
        };
        let options = GroupOptions::new(config, timeout);
        let world = Group::world(communicator, options)?;
        let p2p = Arc::new(WorldP2p::new(world.duplicate()?)?);
        let groups = HashMap::from([(objects::ompi_mpi_comm_world.handle(), Arc::new(world))]);
        Ok(World { p2p, groups, created: 0 })
    }
}
