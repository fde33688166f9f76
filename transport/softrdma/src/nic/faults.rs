//! Faults that somebody injects from outside: commands about queue pairs, and nodes that stall.
//!
//! One word counts changes, and is looked at whenever work is posted and now and then when nothing is found.
//! Only when it has changed is more read.
//!
//! # Safety
//! The one unsafe thing is to end this process by a signal, when somebody asked for just that.

use super::{At, Nic};
use crate::{
    control::{Command, UNPLUGGED_CRASHING},
    log,
    shm::QPS,
};
use std::sync::{
    PoisonError,
    atomic::{
        AtomicBool,
        Ordering::{Acquire, Relaxed, SeqCst},
    },
};
use verbs_sys::EventType;

impl Nic {
    /// Carries out commands that have come since the last look.
    #[inline]
    pub(crate) fn notice(&self) {
        let changes = self.control().generation.load(Acquire);
        if changes != self.seen_changes.load(Relaxed) {
            self.seen_changes.store(changes, Relaxed);
            self.obey();
        }
    }

    #[cold]
    fn obey(&self) {
        let mut seen = self.seen_commands.lock().unwrap_or_else(PoisonError::into_inner);
        let (commands, last) = self.control().commands_after(*seen);
        *seen = last;
        drop(seen);
        for command in commands {
            let (Command::FailQp { port, qp }
            | Command::OverflowCq { port, qp }
            | Command::Sleep { port, qp }) = command;
            for at in (0..QPS).filter_map(|index| self.own_qp(index)) {
                let is_of_port = at.qpn() != 0 && at.qp.fixed.port.load(Relaxed) == port;
                if is_of_port && (qp == 0 || at.qpn() == qp) {
                    self.carry_out_command(at, command);
                }
            }
        }
    }

    fn carry_out_command(&self, at: At<'_>, command: Command) {
        match command {
            Command::FailQp { .. } => self.fail(at, Some(EventType::QP_FATAL)),
            Command::OverflowCq { .. } => {
                for cq in [&at.qp.fixed.send_cq, &at.qp.fixed.recv_cq] {
                    if let Some(record) = at.view.cq(cq.load(Relaxed)) {
                        record.fixed.overrun.fetch_max(1, SeqCst);
                        self.overrun(at.view, record);
                    }
                }
                self.fail(at, Some(EventType::QP_FATAL));
            }
            Command::Sleep { .. } => self.put_to_sleep(at),
        }
    }

    /// Somebody posts to a device that would crash them if its cable were out: says so, once for each time that it
    /// is pulled, or lets them crash.
    #[inline]
    pub(crate) fn touch_doorbell(&self, port: u32) {
        let Some(end) = self.world.device(port).cable_end else { return };
        let how = self.control().cables[end.cable].is_unplugged.load(Relaxed);
        let warned = &self.warned[end.cable];
        if how != 0 {
            self.miss_doorbell(port, how, warned);
        } else if warned.load(Relaxed) {
            warned.store(false, Relaxed);
        }
    }

    #[cold]
    fn miss_doorbell(&self, port: u32, how: u32, warned: &AtomicBool) {
        let name = &self.world.device(port).name;
        if how == UNPLUGGED_CRASHING {
            log::warn(format_args!("{name}: posting while the cable is out: crashing, as a Mac does"));
            crash();
        }
        if !warned.swap(true, Relaxed) {
            log::warn(format_args!("{name}: posting while the cable is out, which crashes on a Mac: held"));
        }
    }

    /// Has somebody stalled the node that a port belongs to?
    #[inline]
    pub(crate) fn is_stalled(&self, port: u32) -> bool {
        let node = self.world.device(port).node;
        self.control().nodes.get(node).is_some_and(|node| node.is_stalled.load(Relaxed) != 0)
    }
}

/// Ends this process as an access to memory that is gone does, once its own handler of that signal has run.
fn crash() -> ! {
    // SAFETY: raising a signal and restoring its default action touch no memory of ours; `abort` is for whoever has
    // blocked the signal.
    unsafe {
        libc::raise(libc::SIGSEGV);
        libc::signal(libc::SIGSEGV, libc::SIG_DFL);
        libc::raise(libc::SIGSEGV);
        libc::abort()
    }
}
