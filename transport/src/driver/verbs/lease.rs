//! The lease of memory that is lent: whoever drops it has the memory back, and no device knows it any more.

use super::{endpoint::lock, engine::Engine};
use crate::driver::RegistrationGuard;
use std::sync::{Mutex, Weak};

/// Memory that is lent to an engine, by its first address.
#[derive(Debug)]
pub(super) struct VerbsLease {
    pub(super) engine: Weak<Mutex<Engine>>,
    pub(super) start: usize,
}

impl RegistrationGuard for VerbsLease {}

impl Drop for VerbsLease {
    fn drop(&mut self) {
        if let Some(engine) = self.engine.upgrade() {
            let engine = &mut *lock(&engine);
            engine.lent.give_back(self.start, &mut engine.ports);
        }
    }
}
