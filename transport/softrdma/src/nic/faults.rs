//! Fault injection: executes commands that an observer has issued, and crashes or warns programs that post to
//! a device without a cable.
//!
//! One word counts the changes of the control block. It is read whenever work is posted, and once in a while
//! when polls find nothing. More is read only when the word has changed.
//!
//! # Safety
//! The only unsafe act is to end this process by a signal, when a command asks for that.

use super::{completions::Completions, engine::Engine, idle, member::Member, qp::QpRef};
use crate::{
    control::{Command, Control, UNPLUGGED_CRASHING},
    log,
};
use std::sync::{
    Mutex, PoisonError,
    atomic::{
        AtomicBool, AtomicU32,
        Ordering::{Acquire, Relaxed, SeqCst},
    },
};
use verbs_sys::EventType;

/// The faults that this process has seen.
#[derive(Debug)]
pub(crate) struct FaultInjection {
    /// The change counter at the last look.
    seen_generation: AtomicU32,
    /// Number of the last command that was executed.
    last_command: Mutex<u64>,
    /// For each cable: whether a warning was logged since the cable was unplugged.
    warned: Box<[AtomicBool]>,
}

impl FaultInjection {
    /// Begins after the commands that were issued before now.
    pub(super) fn new(control: &Control, cables: usize) -> FaultInjection {
        FaultInjection {
            seen_generation: AtomicU32::new(control.generation.load(Acquire)),
            last_command: Mutex::new(control.last_command()),
            warned: (0..cables).map(|_| AtomicBool::new(false)).collect(),
        }
    }

    /// Executes the commands that were issued since the last look.
    #[inline]
    pub(super) fn poll(&self, member: &Member) {
        let generation = member.control().generation.load(Acquire);
        if generation != self.seen_generation.load(Relaxed) {
            self.seen_generation.store(generation, Relaxed);
            self.execute_commands(member);
        }
    }

    #[cold]
    fn execute_commands(&self, member: &Member) {
        for command in self.take_commands(member.control()) {
            let (Command::FailQp { port, qp: qpn }
            | Command::OverflowCq { port, qp: qpn }
            | Command::Sleep { port, qp: qpn }) = command;
            for qp in member.own_qps() {
                let is_of_port = qp.record.fixed.port.load(Relaxed) == port;
                if is_of_port && (qpn == 0 || qp.qpn() == qpn) {
                    execute_command(member, qp, command);
                }
            }
        }
    }

    /// Returns each command once.
    fn take_commands(&self, control: &Control) -> Vec<Command> {
        let mut last = self.last_command.lock().unwrap_or_else(PoisonError::into_inner);
        let (commands, seen) = control.commands_after(*last);
        *last = seen;
        commands
    }

    /// Checks the cable of a port that the program posts to, on devices that crash programs without one.
    ///
    /// Logs a warning once for each time that the cable is unplugged, or crashes the process if a command
    /// asks for that.
    #[inline]
    pub(super) fn check_cable(&self, member: &Member, port: u32) {
        let Some(end) = member.fabric().device(port).cable_end else { return };
        let unplugged = member.control().cables[end.cable].is_unplugged.load(Relaxed);
        let warned = &self.warned[end.cable];
        if unplugged != 0 {
            post_without_cable(&member.fabric().device(port).name, unplugged, warned);
        } else if warned.load(Relaxed) {
            warned.store(false, Relaxed);
        }
    }
}

fn execute_command(member: &Member, qp: QpRef<'_>, command: Command) {
    match command {
        Command::FailQp { .. } => Engine::new(member).fail(qp, Some(EventType::QP_FATAL)),
        Command::OverflowCq { .. } => {
            for cq in [&qp.record.fixed.send_cq, &qp.record.fixed.recv_cq] {
                if let Some(record) = qp.view.cq(cq.load(Relaxed)) {
                    record.fixed.overrun.fetch_max(1, SeqCst);
                    Completions::new(member).report_overrun(qp.view, record);
                }
            }
            Engine::new(member).fail(qp, Some(EventType::QP_FATAL));
        }
        Command::Sleep { port, .. } => idle::stop(qp, member.fabric().device(port)),
    }
}

#[cold]
fn post_without_cable(name: &str, unplugged: u32, warned: &AtomicBool) {
    if unplugged == UNPLUGGED_CRASHING {
        log::warn(format_args!("{name}: posting while the cable is out: crashing, as a Mac does"));
        crash();
    }
    if !warned.swap(true, Relaxed) {
        log::warn(format_args!("{name}: posting while the cable is out, which crashes on a Mac: held"));
    }
}

/// Ends this process like an access to memory that is gone, after the program's own handler of that signal
/// has run.
fn crash() -> ! {
    // SAFETY: raising a signal and restoring its default action touch no memory of ours. `abort` is for
    // programs that have blocked the signal.
    unsafe {
        libc::raise(libc::SIGSEGV);
        libc::signal(libc::SIGSEGV, libc::SIG_DFL);
        libc::raise(libc::SIGSEGV);
        libc::abort()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{super::member::tests::member, *};
    use verbs_sys::QpState;

    #[test]
    fn a_command_is_executed_once_by_those_who_were_there() {
        let folder = tempfile::tempdir().expect("a folder");
        let member = member(&folder);
        let control = member.control();
        control.issue(Command::FailQp { port: 0, qp: 0 });
        let faults = FaultInjection::new(control, 0);
        assert_eq!(faults.take_commands(control), []);
        control.issue(Command::FailQp { port: 0, qp: 7 });
        assert_eq!(faults.take_commands(control), [Command::FailQp { port: 0, qp: 7 }]);
        assert_eq!(faults.take_commands(control), []);
    }

    #[test]
    fn a_command_is_for_the_queue_pairs_of_its_port() {
        let folder = tempfile::tempdir().expect("a folder");
        let member = member(&folder);
        let faults = FaultInjection::new(member.control(), 0);
        for (index, port) in [(1, 0), (2, 1)] {
            let fixed = &member.own_qp(index).expect("a record").record.fixed;
            fixed.qpn.store(index, Relaxed);
            fixed.port.store(port, Relaxed);
            fixed.state.store(QpState::RESET.0, Relaxed);
        }
        member.control().issue(Command::FailQp { port: 0, qp: 0 });
        faults.poll(&member);
        let states = [1, 2].map(|index| member.own_qp(index).expect("a record").state());
        assert_eq!(states, [QpState::ERR, QpState::RESET]);
    }
}
