//! The job from `MPI_Init` to `MPI_Finalize`, and its groups by handle. Groups that are compiled against MLX
//! share the job.
//!
//! MLX frees a group while calls on it are still queued in a stream, as in
//! `all_sum(x, group=world.split(c))`: the last reference is that of the operation, which is dropped once it
//! is queued. MLX does not queue more than about ten operations. So a freed group stays usable until
//! [`KEPT_FREED`] others have been freed.

use super::objects;
use crate::{Failure, Group, Messages, Outcome, World};
use mlx_table::mpi::Handle;
use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

/// State of this process.
static STATE: RwLock<State> = RwLock::new(State::Uninitialized);

#[derive(Debug)]
enum State {
    Uninitialized,
    Running(Job),
    Finalized,
}

/// The world, and its groups by handle.
#[derive(Debug)]
struct Job {
    world: World,
    /// Whether `MPI_Init` has been called; groups that are compiled against MLX join without it.
    has_mpi: bool,
    groups: HashMap<usize, Arc<Group>>,
    /// Number of groups created by splits.
    created: usize,
    /// Freed groups that queued calls may still name, the oldest first.
    freed: VecDeque<usize>,
}

/// Number of freed groups that stay usable: more than MLX has operations queued at a time.
const KEPT_FREED: usize = 16;

/// Handles of groups are greater than this number. No object has such an address.
const FIRST_HANDLE: usize = 0x2000;

fn state() -> RwLockReadGuard<'static, State> {
    STATE.read().unwrap_or_else(PoisonError::into_inner)
}

fn state_mut() -> RwLockWriteGuard<'static, State> {
    STATE.write().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    fn job(&self) -> Outcome<&Job> {
        match self {
            State::Running(job) => Ok(job),
            State::Uninitialized => Err(Failure::usage("MPI_Init has not been called")),
            State::Finalized => Err(finalized()),
        }
    }

    fn job_mut(&mut self) -> Outcome<&mut Job> {
        match self {
            State::Running(job) => Ok(job),
            State::Uninitialized => Err(Failure::usage("MPI_Init has not been called")),
            State::Finalized => Err(finalized()),
        }
    }
}

fn finalized() -> Failure {
    Failure::usage("MPI_Finalize has been called; no MPI call is possible after it")
}

/// Returns the world, after joining the job unless this process has joined it already.
pub(crate) fn world_or_join() -> Outcome<World> {
    let mut state = state_mut();
    if matches!(*state, State::Uninitialized) {
        let (world, groups) = (World::join()?, HashMap::new());
        *state = State::Running(Job { world, has_mpi: false, groups, created: 0, freed: VecDeque::new() });
    }
    Ok(state.job()?.world.clone())
}

/// Joins the job, for MPI's functions.
pub(crate) fn init() -> Outcome {
    let world = world_or_join()?;
    let mut state = state_mut();
    let job = state.job_mut()?;
    if std::mem::replace(&mut job.has_mpi, true) {
        return Err(Failure::usage("it has been called before"));
    }
    job.groups.insert(objects::world(), Arc::clone(world.group()));
    Ok(())
}

/// Waits until this rank may leave the job, if it is a rank of one. Other threads may make calls meanwhile.
/// `others` are groups without a handle.
pub(crate) fn prepare_to_leave(others: &[Arc<Group>]) {
    let leaving = match &*state() {
        State::Running(job) => Some((job.world.clone(), job.groups.values().cloned().collect::<Vec<_>>())),
        State::Uninitialized | State::Finalized => None,
    };
    if let Some((world, groups)) = leaving {
        world.prepare_to_leave(groups.iter().chain(others));
    }
}

/// Leaves the job.
pub(crate) fn leave() {
    // Dropping the groups tells the ranks that wait for this one in any group's call.
    let previous = std::mem::replace(&mut *state_mut(), State::Finalized);
    drop(previous);
}

/// Leaves the job, for MPI's functions. Other threads may make calls until it has left.
pub(crate) fn finalize() -> Outcome {
    prepare_to_leave(&[]);
    leave();
    Ok(())
}

/// Whether this process is a rank of a job now, through MPI's functions.
pub(crate) fn is_running() -> bool {
    matches!(&*state(), State::Running(job) if job.has_mpi)
}

/// Returns the group of a handle.
#[inline]
pub(crate) fn group(handle: Handle) -> Outcome<Arc<Group>> {
    let state = state();
    let found = state.job()?.groups.get(&(handle as usize));
    found.cloned().ok_or_else(|| Failure::usage("not a communicator, or one that was freed"))
}

/// Returns the point-to-point messages of the job.
pub(crate) fn messages() -> Outcome<Arc<Messages>> {
    Ok(Arc::clone(state().job()?.world.messages()))
}

/// Adds a group, and returns its handle.
pub(crate) fn register(group: Group) -> Outcome<Handle> {
    let mut state = state_mut();
    let job = state.job_mut()?;
    job.created += 1;
    let number = FIRST_HANDLE + job.created;
    job.groups.insert(number, Arc::new(group));
    Ok(std::ptr::without_provenance_mut(number))
}

/// Frees a group. It stays usable for calls that have been queued, and ends some frees later.
pub(crate) fn free(handle: Handle) -> Outcome {
    let number = handle as usize;
    if number == objects::world() {
        return Err(Failure::usage("the world is freed by MPI_Finalize"));
    }
    let mut state = state_mut();
    // `MPI_Finalize` has freed all groups.
    let Ok(job) = state.job_mut() else { return Ok(()) };
    if !job.groups.contains_key(&number) || job.freed.contains(&number) {
        return Err(Failure::usage("not a communicator, or one that was freed"));
    }
    job.freed.push_back(number);
    let ended = if job.freed.len() > KEPT_FREED { job.freed.pop_front() } else { None };
    let ended = ended.and_then(|number| job.groups.remove(&number));
    drop(state);
    drop(ended);
    Ok(())
}
