//! The end of all processes of a job on this host: `SIGTERM`, a grace period, `SIGKILL`.

use super::processes::{Process, SEARCH_INTERVAL, Scope};
use rustix::process::Signal;
use std::{
    thread::sleep,
    time::{Duration, Instant},
};

/// Time that killed processes may take to disappear.
const KILL_WAIT: Duration = Duration::from_secs(2);

/// A running end of a job's processes.
#[derive(Debug)]
pub(super) struct Ending {
    scope: Scope,
    /// End of the grace period, or of the wait for killed processes.
    until: Instant,
    /// Whether the processes are being killed.
    is_killing: bool,
}

impl Ending {
    /// Interval between calls of [`Ending::poll`].
    pub(super) const POLL_INTERVAL: Duration = SEARCH_INTERVAL;

    /// Asks all processes to end. Those that are left after the grace period are killed.
    pub(super) fn begin(scope: Scope, grace: Duration) -> Ending {
        let until = Instant::now() + grace;
        if !scope.is_empty() {
            let found = scope.find();
            signal_all(&found, Signal::TERM);
            // A stopped process must continue to handle SIGTERM.
            signal_all(&found, Signal::CONT);
        }
        Ending { scope, until, is_killing: false }
    }

    /// Ends the grace period.
    pub(super) fn kill(&mut self) {
        if !self.is_killing {
            (self.is_killing, self.until) = (true, Instant::now() + KILL_WAIT);
        }
    }

    /// Kills remaining processes when the grace period has passed. Returns whether none is left, or those
    /// left can't be killed.
    pub(super) fn poll(&mut self) -> bool {
        if self.scope.is_empty() {
            return true;
        }
        let is_due = Instant::now() >= self.until;
        if is_due && self.is_killing {
            return true;
        }
        if is_due {
            self.kill();
        }
        if self.is_killing {
            // Again each time, because processes start others until they are dead.
            signal_all(&self.scope.find(), Signal::KILL);
        }
        false
    }

    /// Waits until no process is left, or those left can't be killed.
    pub(super) fn wait(mut self) {
        while !self.poll() {
            sleep(Ending::POLL_INTERVAL);
        }
    }

    /// Returns the processes that are left.
    pub(super) fn left(&self) -> Vec<Process> {
        if self.scope.is_empty() { Vec::new() } else { self.scope.find() }
    }
}

fn signal_all(processes: &[Process], signal: Signal) {
    for process in processes {
        process.signal(signal);
    }
}
