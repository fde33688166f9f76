//! Registration guard of user memory. Dropping the guard ends the memory's registration with all devices.

use super::engine::{Engine, lock};
use crate::driver::RegistrationGuard;
use std::sync::{Mutex, Weak};

/// Registration guard, which names the registered memory by its first address.
#[derive(Debug)]
pub(super) struct VerbsRegistrationGuard {
    pub(super) engine: Weak<Mutex<Engine>>,
    pub(super) start: usize,
}

impl RegistrationGuard for VerbsRegistrationGuard {}

impl Drop for VerbsRegistrationGuard {
    fn drop(&mut self) {
        if let Some(engine) = self.engine.upgrade() {
            let engine = &mut *lock(&engine);
            engine.registration_cache.remove(self.start, &mut engine.ports);
        }
    }
}
