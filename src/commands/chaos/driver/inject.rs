//! Faults from outside of a process: each is injected some time after a rank has begun a step, and undone
//! after its duration.

use super::{CommandError, fabric, job::Job, system, tcp};
use crate::commands::chaos::{
    account::{Account, now},
    fault::{Actor, Fault, Kind},
    plan::Round,
};
use rustix::process::Signal;
use std::{path::Path, time::Duration};

/// Times for which a slow rank is stopped, and runs, in turn.
const SLOW: (Duration, Duration) = (Duration::from_millis(15), Duration::from_millis(5));

/// An act of the driver.
#[derive(Clone, Debug)]
enum Act {
    /// Injects the fault of this index.
    Inject(usize),
    Signal(u32, Signal),
    /// Arguments of `tbccl fabric fault`.
    Fabric(Vec<String>),
}

/// Injects the faults of a round that are the driver's.
#[derive(Debug)]
pub(super) struct Injector<'r> {
    round: &'r Round,
    folder: &'r Path,
    /// Acts with their times, in any order.
    agenda: Vec<(u64, Act)>,
    /// Faults that are on the agenda, or have been.
    armed: Vec<bool>,
    injected: Vec<Option<u64>>,
    /// Times at which the injections were complete.
    effective: Vec<Option<u64>>,
    /// Acts that undo faults which last until all processes have reported.
    heals: Vec<Act>,
    has_killed_server: bool,
}

impl<'r> Injector<'r> {
    pub(super) fn new(round: &'r Round, folder: &'r Path) -> Injector<'r> {
        let faults = round.faults.len();
        Injector {
            round,
            folder,
            agenda: Vec::new(),
            armed: vec![false; faults],
            injected: vec![None; faults],
            effective: vec![None; faults],
            heals: Vec::new(),
            has_killed_server: false,
        }
    }

    /// Whether no act is due later.
    pub(super) fn is_idle(&self) -> bool {
        self.agenda.is_empty()
    }

    /// Whether the launcher, the rendezvous or an agent has been killed.
    pub(super) fn has_killed_server(&self) -> bool {
        self.has_killed_server
    }

    /// Returns the times at which all faults were injected, those of ranks among them.
    pub(super) fn times(&self, accounts: &[Account]) -> Vec<Option<u64>> {
        self.times_by(&self.injected, accounts)
    }

    /// Returns the times by which all faults had been injected: software devices take some milliseconds.
    pub(super) fn effects(&self, accounts: &[Account]) -> Vec<Option<u64>> {
        self.times_by(&self.effective, accounts)
    }

    fn times_by(&self, of_driver: &[Option<u64>], accounts: &[Account]) -> Vec<Option<u64>> {
        let time = |(index, fault): (usize, &Fault)| match fault.kind.row().actor {
            Actor::Driver => of_driver[index],
            Actor::Fabric => Some(0),
            Actor::Rank => {
                let all = accounts[fault.rank as usize].injected.iter();
                all.filter(|(known, _)| *known == index).map(|(_, at)| *at).next()
            }
        };
        self.round.faults.iter().enumerate().map(time).collect()
    }

    /// Does everything that is due; returns whether that was anything.
    pub(super) fn advance(&mut self, accounts: &[Account], job: &mut Job) -> Result<bool, CommandError> {
        for (index, fault) in self.round.faults.iter().enumerate() {
            let Some((step, at)) = accounts[fault.rank as usize].step else { continue };
            if fault.kind.row().actor == Actor::Driver && !self.armed[index] && step >= fault.step {
                self.armed[index] = true;
                self.agenda.push((at + fault.delay.as_micros() as u64, Act::Inject(index)));
            }
        }
        let time = now();
        let mut due: Vec<(u64, Act)> = self.agenda.extract_if(.., |(at, _)| *at <= time).collect();
        due.sort_by_key(|(at, _)| *at);
        let is_any = !due.is_empty();
        for (_, act) in due {
            self.act(act, accounts, job)?;
        }
        Ok(is_any)
    }

    /// Undoes all faults that last.
    pub(super) fn heal(&mut self) -> Result<(), CommandError> {
        let acts = self.agenda.drain(..).map(|(_, act)| act).chain(self.heals.drain(..)).collect::<Vec<_>>();
        for act in acts {
            match act {
                Act::Inject(_) | Act::Signal(_, Signal::STOP) => {}
                Act::Signal(pid, signal) => system::signal(pid, signal),
                Act::Fabric(arguments) => fabric::fault(self.folder, &arguments)?,
            }
        }
        Ok(())
    }

    fn act(&mut self, act: Act, accounts: &[Account], job: &mut Job) -> Result<(), CommandError> {
        match act {
            Act::Inject(index) => self.inject(index, accounts, job)?,
            Act::Signal(pid, signal) => system::signal(pid, signal),
            Act::Fabric(arguments) => fabric::fault(self.folder, &arguments)?,
        }
        Ok(())
    }

    fn inject(&mut self, index: usize, accounts: &[Account], job: &mut Job) -> Result<(), CommandError> {
        let fault = self.round.faults[index].clone();
        let Some(pid) = accounts[fault.rank as usize].pid else { return Ok(()) };
        self.injected[index] = Some(now());
        let undo_at = now() + fault.lasting.as_micros() as u64;
        match fault.kind {
            Kind::Kill => system::signal(pid, Signal::KILL),
            Kind::Pause | Kind::Stop => {
                self.stop(pid)?;
                self.agenda.push((undo_at, Act::Signal(pid, Signal::CONT)));
            }
            Kind::Slow => self.slow_down(pid, undo_at),
            Kind::Reset => {
                let is_reset = tcp::reset(pid, fault.choice);
                self.injected[index] = self.injected[index].filter(|_| is_reset);
            }
            Kind::Buffers => tcp::squeeze(pid),
            Kind::Agent => self.kill_server(system::parent(pid)),
            Kind::Launcher | Kind::Rendezvous => {
                self.kill_server(job.server.as_ref().map(|child| child.id()));
            }
            _ => self.inject_into_fabric(&fault, undo_at)?,
        }
        self.effective[index] = self.injected[index].map(|_| now());
        Ok(())
    }

    /// Stops a process. Software devices are its own code, and peers wait for its locks of their queues, so
    /// it is stopped while it holds none: devices of hardware go on without their process.
    fn stop(&self, pid: u32) -> Result<(), CommandError> {
        if !self.round.setting.has_devices() {
            system::signal(pid, Signal::STOP);
            return Ok(());
        }
        let stopped = fabric::fault(self.folder, &["freeze".to_owned(), pid.to_string()]);
        // The process may have ended.
        stopped.or_else(|error| if system::is_alive(pid) { Err(error) } else { Ok(()) })
    }

    fn kill_server(&mut self, pid: Option<u32>) {
        self.has_killed_server = true;
        if let Some(pid) = pid {
            system::signal(pid, Signal::KILL);
        }
    }

    fn slow_down(&mut self, pid: u32, until: u64) {
        let mut at = now();
        while at < until {
            self.agenda.push((at, Act::Signal(pid, Signal::STOP)));
            at += SLOW.0.as_micros() as u64;
            self.agenda.push((at, Act::Signal(pid, Signal::CONT)));
            at += SLOW.1.as_micros() as u64;
        }
    }

    fn inject_into_fabric(&mut self, fault: &Fault, undo_at: u64) -> Result<(), CommandError> {
        let port = || self.round.cable(fault.cable)[fault.end].0.clone();
        let node = self.round.node_of(fault.rank).to_string();
        let act = |words: &[&str]| Act::Fabric(words.iter().map(|word| (*word).to_owned()).collect());
        let (does, undoes) = match fault.kind {
            Kind::Unplug | Kind::Cut => {
                let port = port();
                (act(&["unplug", &port]), Some(act(&["replug", &port])))
            }
            Kind::Port => (act(&["port-down", &port()]), Some(act(&["port-up", &port()]))),
            Kind::QueuePair => (act(&["fail-qp", &port()]), None),
            Kind::Silence => (act(&["sleep", &port()]), None),
            Kind::Overflow => (act(&["overflow-cq", &port()]), None),
            Kind::Stall => (act(&["stall", &node]), Some(act(&["resume", &node]))),
            Kind::Address => {
                let index = (1 + fault.choice % 3).to_string();
                (act(&["gid", &port(), "--index", &index]), None)
            }
            _ => return Ok(()),
        };
        if let Act::Fabric(arguments) = does {
            fabric::fault(self.folder, &arguments)?;
        }
        match undoes {
            Some(undo) if fault.kind == Kind::Cut => self.heals.push(undo),
            Some(undo) => self.agenda.push((undo_at, undo)),
            None => {}
        }
        Ok(())
    }
}
