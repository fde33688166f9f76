//! Faults that a rank injects into itself.

use super::{Group, Worker, fork};
use crate::commands::chaos::{
    account::{Report, now},
    fault::{Fault, Kind},
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::{fs, os::fd::AsRawFd, thread};

/// Smallest and largest address space, in MiB, that a rank without memory may still map.
const SPARE_MIB: (u64, u64) = (8, 64);

/// A limit of the system that is lowered while this exists.
#[derive(Debug)]
pub(super) struct Limits {
    resource: Resource,
    before: Rlimit,
}

impl Limits {
    fn lower(resource: Resource, to: u64) -> Limits {
        let before = getrlimit(resource);
        let _ = setrlimit(resource, Rlimit { current: Some(to), ..before });
        Limits { resource, before }
    }

    /// Leaves at most 3 descriptors to open.
    fn few_descriptors(choice: u64) -> Option<Limits> {
        let lowest_free = fs::File::open("/dev/null").ok()?.as_raw_fd();
        Some(Limits::lower(Resource::Nofile, lowest_free as u64 + choice % 4))
    }

    /// Leaves a little address space to map.
    fn little_memory(choice: u64) -> Option<Limits> {
        let statm = fs::read_to_string("/proc/self/statm").ok()?;
        let pages: u64 = statm.split(' ').next()?.parse().ok()?;
        let spare = SPARE_MIB.0 + choice % (SPARE_MIB.1 - SPARE_MIB.0);
        Some(Limits::lower(Resource::As, pages * rustix::param::page_size() as u64 + (spare << 20)))
    }
}

impl Drop for Limits {
    fn drop(&mut self) {
        let _ = setrlimit(self.resource, self.before);
    }
}

impl Worker<'_> {
    /// Returns the fault of a kind that this process injects at a step.
    pub(super) fn own_fault(&self, kind: Kind, step: usize) -> Option<&Fault> {
        let is_it = |fault: &&Fault| fault.kind == kind && fault.step == step && fault.rank == self.number;
        self.round.faults.iter().find(is_it)
    }

    fn injected(&self, fault: &Fault) {
        let index = self.round.faults.iter().position(|known| known == fault).unwrap_or_default();
        self.reporter.say(&Report::Injected { fault: index, at: now() });
    }

    /// Waits before joining, if the plan says so.
    pub(super) fn come_late(&self) {
        for fault in self.round.faults.iter().filter(|fault| fault.rank == self.number) {
            if fault.kind.is_before_joining() {
                self.injected(fault);
                thread::sleep(fault.lasting);
            }
        }
    }

    /// Injects the faults of a step before its work. Returns `None` if this process leaves, and otherwise the
    /// limits that hold during the work.
    pub(super) fn inject(&mut self, step: usize) -> Option<Option<Limits>> {
        let is_here = |fault: &&Fault| {
            fault.rank == self.number && fault.step == step && !fault.kind.is_before_joining()
        };
        let faults: Vec<Fault> = self.round.faults.iter().filter(is_here).cloned().collect();
        let mut limits = None;
        for fault in faults {
            match fault.kind {
                Kind::Busy | Kind::Away => {
                    self.injected(&fault);
                    thread::sleep(fault.lasting);
                }
                Kind::Leave => {
                    self.injected(&fault);
                    self.close_all();
                    return None;
                }
                Kind::Abort => self.abort(&fault),
                Kind::Fork => self.fork(&fault),
                Kind::Mismatch => self.injected(&fault),
                Kind::Descriptors => {
                    self.injected(&fault);
                    limits = Limits::few_descriptors(fault.choice);
                }
                Kind::Memory => {
                    self.injected(&fault);
                    limits = Limits::little_memory(fault.choice);
                }
                _ => {}
            }
        }
        Some(limits)
    }

    /// Aborts the step's communicator from another thread after the delay.
    fn abort(&mut self, fault: &Fault) {
        let Some(Group::Calls(comm)) = self.groups.get(&self.round.steps[fault.step].group) else { return };
        let (comm, delay) = (comm.clone(), fault.delay);
        self.injected(fault);
        self.aborts.push(thread::spawn(move || {
            thread::sleep(delay);
            comm.abort();
        }));
    }

    /// Forks. The child makes calls, which must be refused, drops all that it has, and stays for a while.
    fn fork(&mut self, fault: &Fault) {
        self.injected(fault);
        let groups = &mut self.groups;
        let child = fork::in_child(|| {
            let refused = groups.values().all(|group| match group {
                Group::Calls(comm) => comm.with(|comm| comm.barrier()).and_then(|done| done).is_err(),
                Group::Tagged(p2p) => p2p.alloc::<u8>(1).is_err(),
            });
            groups.clear();
            thread::sleep(fault.lasting);
            refused
        });
        self.children.extend(child);
    }
}
