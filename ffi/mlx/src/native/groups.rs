//! Groups by number.
//!
//! The C++ side holds a number, and releases it when neither the program nor a queued call uses the group.
//! Leaving the job releases all groups, so that later calls fail and peers see that this rank has left.

use crate::{Failure, Group, Outcome};
use mlx_table::native::{Group as Number, WORLD};
use std::{
    collections::HashMap,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

/// Groups of this process; `None` before the first one.
static GROUPS: RwLock<Option<HashMap<Number, Arc<Group>>>> = RwLock::new(None);

/// Number of the next group that a split makes.
static NEXT: AtomicU64 = AtomicU64::new(WORLD + 1);

/// Registers the group of all ranks.
pub(super) fn set_world(group: Arc<Group>) {
    insert(WORLD, group);
}

/// Registers a group that a split has made, and returns its number.
pub(super) fn add(group: Group) -> Number {
    let number = NEXT.fetch_add(1, Relaxed);
    insert(number, Arc::new(group));
    number
}

fn insert(number: Number, group: Arc<Group>) {
    let mut groups = GROUPS.write().unwrap_or_else(PoisonError::into_inner);
    groups.get_or_insert_default().insert(number, group);
}

/// Returns the group of a number.
#[inline]
pub(super) fn get(number: Number) -> Outcome<Arc<Group>> {
    let groups = GROUPS.read().unwrap_or_else(PoisonError::into_inner);
    let found = groups.as_ref().and_then(|groups| groups.get(&number)).cloned();
    found.ok_or_else(|| Failure::usage("this process has left the job, or the group was released"))
}

/// Releases a group. The group of all ranks stays until the process leaves the job.
pub(super) fn release(number: Number) {
    if number == WORLD {
        return;
    }
    let released = {
        let mut groups = GROUPS.write().unwrap_or_else(PoisonError::into_inner);
        groups.as_mut().and_then(|groups| groups.remove(&number))
    };
    // Closing connections takes a while, during which other threads look groups up.
    drop(released);
}

/// Returns all groups.
pub(super) fn all() -> Vec<Arc<Group>> {
    let groups = GROUPS.read().unwrap_or_else(PoisonError::into_inner);
    groups.iter().flat_map(HashMap::values).cloned().collect()
}

/// Releases all groups.
pub(super) fn release_all() {
    drop(GROUPS.write().unwrap_or_else(PoisonError::into_inner).take());
}
