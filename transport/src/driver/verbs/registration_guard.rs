//! Registration guard of user memory. Dropping the guard ends the memory's registration with all devices.

use super::{registration_cache::RangeId, shared_engine::SharedEngine};
use crate::driver::RegistrationGuard;
use std::sync::Weak;

/// Registration guard.
#[derive(Debug)]
pub(super) struct VerbsRegistrationGuard {
    pub(super) engine: Weak<SharedEngine>,
    pub(super) range: RangeId,
}

impl RegistrationGuard for VerbsRegistrationGuard {}

impl Drop for VerbsRegistrationGuard {
    fn drop(&mut self) {
        if let Some(engine) = self.engine.upgrade() {
            let engine = &mut *engine.lock();
            engine.registration_cache.remove(self.range, &mut engine.ports);
        }
    }
}
