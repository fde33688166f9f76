//! The rendezvous of threads of one process that make another communicator.
//!
//! A [`ThreadRendezvous`] belongs to the threads of one communicator, and outlives some of them. The first
//! thread that comes for a job opens a group; the last one creates the shared state; all wait until that
//! exists, or one of them times out.

use super::{
    super::{super::live, labels::labels},
    Threads,
};
use crate::{
    Communicator, Config,
    error::{Error, Result},
};
use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Condvar, Mutex, PoisonError},
    time::Instant,
};
use topology::Rank;

/// The rendezvous of the threads of a communicator.
#[derive(Debug, Default)]
pub(in crate::communicator) struct ThreadRendezvous {
    /// Incomplete groups, by job.
    pending: Mutex<HashMap<String, Arc<PendingGroup>>>,
}

/// The threads that make a communicator.
#[derive(Debug)]
struct PendingGroup {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// Whether each new rank has arrived.
    here: Vec<bool>,
    /// The options on which all ranks must agree, and the new rank that set them first.
    options: (u32, BTreeMap<String, String>),
    /// The shared state, or the error of all ranks.
    outcome: Option<Result<Arc<Threads>>>,
}

impl ThreadRendezvous {
    /// Waits until all members have arrived, and returns the communicator of one of them.
    pub(in crate::communicator) fn meet(
        &self,
        job: &str,
        me: Rank,
        members: &[Rank],
        config: &Config,
    ) -> Result<Communicator> {
        let _joining = live::joining(job);
        let new = members.iter().position(|member| *member == me).unwrap_or_default() as u32;
        let group = self.enter(job, new, members.len(), config);
        let threads = group.wait(config, || {
            self.close(job, &group);
            labels(members)
        })?;
        Ok(threads.communicator(new, config))
    }

    /// Joins the group of a job. The last rank creates the shared state.
    fn enter(&self, job: &str, new: u32, size: usize, config: &Config) -> Arc<PendingGroup> {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        let group = Arc::clone(
            pending.entry(job.to_owned()).or_insert_with(|| Arc::new(PendingGroup::new(new, size, config))),
        );
        let mut state = group.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (first, options) = &state.options;
        if let Some(why) = difference(*first, options, new, &config.shared()) {
            state.outcome = Some(Err(Error::Bootstrap(why)));
        }
        state.here[new as usize] = true;
        if state.outcome.is_none() && state.here.iter().all(|here| *here) {
            state.outcome = Some(Threads::new(size as u32, job, config).map(Arc::new));
        }
        if state.outcome.is_some() {
            // A thread that comes for the same job again waits for another group.
            pending.remove(job);
            group.changed.notify_all();
        }
        drop(state);
        group
    }

    /// Closes a group to further threads.
    fn close(&self, job: &str, group: &Arc<PendingGroup>) {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        if pending.get(job).is_some_and(|other| Arc::ptr_eq(other, group)) {
            pending.remove(job);
        }
    }
}

impl PendingGroup {
    fn new(first: u32, size: usize, config: &Config) -> PendingGroup {
        let state = State { here: vec![false; size], options: (first, config.shared()), outcome: None };
        PendingGroup { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Waits for the shared state. A timeout of one rank fails the whole group; `close` then closes the group
    /// and returns the members' names.
    fn wait(&self, config: &Config, close: impl FnOnce() -> Vec<String>) -> Result<Arc<Threads>> {
        let deadline = Instant::now().checked_add(config.timeout);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(outcome) = &state.outcome {
                return outcome.clone();
            }
            let left = deadline.map_or(config.timeout, |at| at.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                break;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(state);
        let labels = close();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        // The last one may have arrived meanwhile.
        let here = &state.here;
        let absent: Vec<Rank> =
            (0..here.len() as u32).filter(|rank| !here[*rank as usize]).map(Rank).collect();
        let names: Vec<&str> = absent.iter().map(|rank| labels[rank.index()].as_str()).collect();
        let why = format!("these ranks have not come in time: {}", names.join(", "));
        let outcome = state.outcome.get_or_insert(Err(Error::Absent { ranks: absent, why })).clone();
        self.changed.notify_all();
        outcome
    }
}

/// Returns a sentence about the first option that two ranks set differently.
fn difference(
    first: u32,
    ours: &BTreeMap<String, String>,
    rank: u32,
    theirs: &BTreeMap<String, String>,
) -> Option<String> {
    let (key, ours) = ours.iter().find(|(key, value)| theirs.get(*key) != Some(*value))?;
    let theirs = theirs.get(key).map_or("unknown", String::as_str);
    Some(format!(
        "{key} must be equal on all ranks: it is `{ours}` on rank {first} and `{theirs}` on rank {rank}"
    ))
}
