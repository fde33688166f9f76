//! From `MPI_Init` to `MPI_Finalize`: the job that this process is a rank of, and its groups by their handles.
//!
//! Who this process is says the environment, as for any program of tbccl. A process that no launcher has started is a world
//! of its own, as with Open MPI.
//!
//! Programs of MLX wait for people: one rank serves requests, and the others wait for it in a collective. So calls may
//! wait for a day, unless `TBCCL_TIMEOUT` says otherwise; peers that die are noticed at once all the same.

use crate::{
    boundary::{Failure, Outcome, notice_forks},
    group::{Group, Limits},
    objects::{self, Handle},
    post::Post,
};
use std::{
    collections::HashMap,
    ffi::{CStr, CString},
    sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
    time::Duration,
};
use tbccl::{Communicator, Config, launcher_of_env, ranks_of_env};

/// How long calls may wait for peers that live.
const PATIENCE: Duration = Duration::from_secs(24 * 60 * 60);

/// What says otherwise.
const TIMEOUT: &str = "TBCCL_TIMEOUT";

/// What says how many ranks this host has.
const RANKS_HERE: [&str; 2] = ["TBCCL_LOCAL_SIZE", "LOCAL_WORLD_SIZE"];

/// How far this process has come.
static STATE: RwLock<State> = RwLock::new(State::Before);

#[derive(Debug)]
enum State {
    Before,
    Running(World),
    After,
}

/// The job, and its groups.
#[derive(Debug)]
struct World {
    post: Arc<Post>,
    groups: HashMap<usize, Arc<Group>>,
    /// How many groups have been made.
    made: usize,
}

/// Handles of groups begin here. Nothing has such an address.
const FIRST: usize = 0x2000;

fn state() -> RwLockReadGuard<'static, State> {
    STATE.read().unwrap_or_else(PoisonError::into_inner)
}

fn state_to_change() -> RwLockWriteGuard<'static, State> {
    STATE.write().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    fn world(&self) -> Outcome<&World> {
        match self {
            State::Running(world) => Ok(world),
            State::Before => Err(Failure::wrong("MPI_Init has not been called")),
            State::After => Err(over()),
        }
    }

    fn world_mut(&mut self) -> Outcome<&mut World> {
        match self {
            State::Running(world) => Ok(world),
            State::Before => Err(Failure::wrong("MPI_Init has not been called")),
            State::After => Err(over()),
        }
    }
}

fn over() -> Failure {
    Failure::wrong("MPI_Finalize has been called, and nothing comes after that")
}

/// Joins the job.
pub(crate) fn begin() -> Outcome {
    let mut state = state_to_change();
    match *state {
        State::Before => {}
        State::Running(_) => return Err(Failure::wrong("it has been called before")),
        State::After => return Err(over()),
    }
    notice_forks();
    *state = State::Running(World::join()?);
    Ok(())
}

/// Leaves the job; what is not over by then is given up.
pub(crate) fn end() -> Outcome {
    let was = std::mem::replace(&mut *state_to_change(), State::After);
    if let State::Running(World { post, groups, .. }) = was {
        post.finish();
        drop(post);
        // Those who wait for us in a group's call learn that we have left it, whichever group it is.
        drop(groups);
    }
    Ok(())
}

/// Is this process a rank of a job now?
pub(crate) fn is_running() -> bool {
    matches!(*state(), State::Running(_))
}

/// The launcher whose variables this process finds.
pub(crate) fn launcher() -> Option<&'static CStr> {
    static NAME: OnceLock<Option<CString>> = OnceLock::new();
    NAME.get_or_init(|| CString::new(launcher_of_env()?).ok()).as_deref()
}

/// A group by its handle.
#[inline]
pub(crate) fn group(handle: Handle) -> Outcome<Arc<Group>> {
    let state = state();
    let found = state.world()?.groups.get(&(handle as usize));
    found.cloned().ok_or_else(|| Failure::wrong("not a communicator, or one that was freed"))
}

/// The job's p2p.
pub(crate) fn post() -> Outcome<Arc<Post>> {
    Ok(Arc::clone(&state().world()?.post))
}

/// A handle for a group.
pub(crate) fn admit(group: Group) -> Outcome<Handle> {
    let mut state = state_to_change();
    let world = state.world_mut()?;
    world.made += 1;
    let number = FIRST + world.made;
    world.groups.insert(number, Arc::new(group));
    Ok(std::ptr::without_provenance_mut(number))
}

/// Takes a group's handle away. The group ends with the last call that is under way.
pub(crate) fn dismiss(handle: Handle) -> Outcome {
    let number = handle as usize;
    if number == objects::ompi_mpi_comm_world.handle() {
        return Err(Failure::wrong("the world is freed by MPI_Finalize"));
    }
    let mut state = state_to_change();
    // After the end all groups are gone.
    let Ok(world) = state.world_mut() else { return Ok(()) };
    let gone = world.groups.remove(&number);
    drop(state);
    gone.map(drop).ok_or_else(|| Failure::wrong("not a communicator, or one that was freed"))
}

/// A rank of MLX has two threads that work in turns, the program's and the stream's. Where there is no core for each, who waits
/// for a peer gives way at once: the core it spins on may be the one that the peer's other thread is waiting for.
fn not_spinning_where_crowded(mut config: Config) -> Config {
    let said = RANKS_HERE.iter().find_map(|name| std::env::var(name).ok()?.parse::<usize>().ok());
    let ranks = said.or_else(|| ranks_of_env().map(|ranks| ranks as usize)).unwrap_or(1);
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    if config.polling.spin_polls.is_some() || 2 * ranks <= cores {
        return config;
    }
    config.polling.spin_polls = Some(0);
    config
}

impl World {
    fn join() -> Outcome<World> {
        let config = not_spinning_where_crowded(Config::from_env()?);
        let patience = if std::env::var_os(TIMEOUT).is_some() { config.timeout } else { PATIENCE };
        let communicator = match launcher_of_env() {
            Some(_) => Communicator::from_env_with(&config)?,
            None => Communicator::local(1, &config)?
                .pop()
                .ok_or_else(|| Failure::wrong("a world of one was made of none"))?,
        };
        let limits = Limits::of(&communicator, config, patience);
        let world = Group::world(communicator, limits)?;
        let post = Arc::new(Post::open(world.twin()?)?);
        let groups = HashMap::from([(objects::ompi_mpi_comm_world.handle(), Arc::new(world))]);
        Ok(World { post, groups, made: 0 })
    }
}
