//! The communicators of this process that are open, and those that it is joining.

use super::{control::Control, ledger};
use crate::sync::locked;
use std::{
    sync::{Arc, Mutex, Weak},
    time::Instant,
};

/// The open communicators, in the order in which they were made.
static OPEN: Mutex<Vec<Weak<Control>>> = Mutex::new(Vec::new());

/// The communicators that threads of this process are joining.
static JOINING: Mutex<InTheMaking> = Mutex::new(InTheMaking { count: 0, entries: Vec::new() });

/// Communicators in the making.
struct InTheMaking {
    /// Number of entries ever made.
    count: u64,
    /// Number of each entry, the call that makes the communicator, and the time at which it began.
    entries: Vec<(u64, String, Instant)>,
}

/// Adds a communicator.
pub(super) fn register(control: Control) -> Arc<Control> {
    let control = Arc::new(control);
    let mut open = locked(&OPEN);
    // Ranks of one process that are not made as threads of it.
    let is_taken =
        |other: &Weak<Control>| other.upgrade().is_some_and(|other| other.is_at_place_of(&control));
    if open.iter().any(is_taken) {
        control.set_place(u64::from(control.rank().0) + 1);
    }
    open.push(Arc::downgrade(&control));
    drop(open);
    ledger::opened(&control, &all());
    control
}

/// Removes a communicator that has ended.
pub(super) fn deregister(control: &Arc<Control>) {
    ledger::close(control, || {
        locked(&OPEN).retain(|other| !std::ptr::eq(other.as_ptr(), Arc::as_ptr(control)));
    });
}

/// Returns the open communicators, the oldest first.
pub(super) fn all() -> Vec<Arc<Control>> {
    locked(&OPEN).iter().filter_map(Weak::upgrade).collect()
}

/// Whether a communicator is open.
pub(super) fn is_open(control: &Arc<Control>) -> bool {
    locked(&OPEN).iter().any(|other| std::ptr::eq(other.as_ptr(), Arc::as_ptr(control)))
}

/// A communicator in the making, until this is dropped.
#[derive(Debug)]
pub(super) struct Joining(u64);

/// Records that this thread joins a communicator; `made_by` is empty for the first one of a job.
pub(super) fn joining(made_by: &str) -> Joining {
    let mut joining = locked(&JOINING);
    joining.count += 1;
    let number = joining.count;
    joining.entries.push((number, made_by.to_owned(), Instant::now()));
    Joining(number)
}

impl Drop for Joining {
    fn drop(&mut self) {
        locked(&JOINING).entries.retain(|(number, ..)| *number != self.0);
    }
}

/// Returns the communicators in the making: the call that makes each, and the time since it began.
pub(super) fn in_the_making() -> Vec<(String, f64)> {
    let joining = locked(&JOINING);
    let entries = joining.entries.iter();
    entries.map(|(_, made_by, began)| (made_by.clone(), began.elapsed().as_secs_f64())).collect()
}
