//! Waiting until a peer has entered a call.
//!
//! A rank that only sends in a call has no message that shows that its receivers are in the same call.

use super::{
    Executor, Stop, Watch,
    recorded::Recorded,
    waiting::{At, Waiting},
};
use topology::Rank;
use transport::Waiter;

impl Executor {
    /// Waits until `done` returns true, as it does once a peer has entered the call, and asks the watch when
    /// the wait gets long.
    pub(crate) fn wait_until(
        &self,
        peer: Rank,
        watch: &mut dyn Watch,
        done: impl FnMut() -> bool,
    ) -> Result<(), Stop> {
        let began = self.trace.as_ref().map(|recorded| recorded.trace.tape().begin_wait());
        let waited = self.wait_for_entry((peer, began), watch, done);
        if let (Some(Recorded { trace, .. }), Some(began)) = (&self.trace, began) {
            trace.tape().waited_for_entry(peer, began);
        }
        waited
    }

    fn wait_for_entry(
        &self,
        (peer, began): (Rank, Option<u64>),
        watch: &mut dyn Watch,
        mut done: impl FnMut() -> bool,
    ) -> Result<(), Stop> {
        let mut waiter = Waiter::new(self.wait, self.sleeper.as_deref());
        while !done() {
            if waiter.idle() {
                if let (Some(Recorded { trace, .. }), Some(began)) = (&self.trace, began) {
                    trace.tape().waits_for_entry(peer, began);
                }
                let at = At::Entry(peer);
                let waiting = Waiting { at, links: &self.links, waited: waiter.waited() };
                watch.look(&waiting).map_err(Stop::Watch)?;
            }
        }
        Ok(())
    }
}
