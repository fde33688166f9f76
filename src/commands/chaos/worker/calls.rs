//! The work of steps: calls with checked results, and groups made of others.

use super::{Group, Mishap, Worker};
use crate::{
    commands::chaos::{fault::Kind, plan::Step},
    reference::{AnyExchange, Case, Way, exchange_of, traffic::Traffic},
};
use tbccl::{Communicator, P2p, Rank, ReduceOp, SharedCommunicator};

impl Worker<'_> {
    /// Runs `work` on the communicator of a group.
    pub(super) fn on_communicator<R>(
        &self,
        group: usize,
        work: impl FnOnce(&mut Communicator) -> Result<R, Mishap>,
    ) -> Result<R, Mishap> {
        match &self.groups[&group] {
            Group::Calls(comm) => comm.with(work)?,
            Group::Tagged(_) => Err(Mishap::Wrong("the plan makes a call on a group for messages".into())),
        }
    }

    /// Makes a call, unless a fault of this rank makes another one.
    pub(super) fn call(&self, at: usize, group: usize, case: Case) -> Result<(), Mishap> {
        match self.own_fault(Kind::Mismatch, at) {
            Some(fault) => self.on_communicator(group, |comm| mismatched_call(comm, case, fault.choice)),
            None => self.on_communicator(group, |comm| one_call(comm, case)),
        }
    }

    /// Makes calls that run together.
    pub(super) fn calls(&self, group: usize, cases: &[Case]) -> Result<(), Mishap> {
        self.on_communicator(group, |comm| {
            let exchanges: Result<Vec<_>, _> = cases.iter().map(|case| exchange_of(*case, comm)).collect();
            let mut exchanges = exchanges?;
            let mut calls = comm.group();
            exchanges.iter_mut().try_for_each(|exchange| exchange.queue(&mut calls))?;
            let ran = calls.run();
            let checked = exchanges.iter().try_for_each(|exchange| exchange.check());
            exchanges.iter_mut().for_each(|exchange| exchange.overwrite());
            ran?;
            checked.map_err(Mishap::Wrong)
        })
    }

    /// Sends and receives tagged messages.
    pub(super) fn traffic(&self, group: usize, traffic: &Traffic) -> Result<(), Mishap> {
        match &self.groups[&group] {
            Group::Tagged(p2p) => Ok(traffic.run(p2p)?),
            Group::Calls(_) => Err(Mishap::Wrong("the plan sends messages on a group for calls".into())),
        }
    }

    pub(super) fn split(
        &mut self,
        at: usize,
        step: &Step,
        colors: &[Option<u32>],
        keys: &[i32],
    ) -> Result<(), Mishap> {
        let config = self.config.clone();
        let made = self.on_communicator(step.group, |comm| {
            let me = comm.rank().index();
            Ok(comm.split(colors[me], keys[me], &config)?)
        })?;
        let Some(made) = made else { return Ok(()) };
        let is_mine = |group: &&usize| self.round.members(**group).contains(&self.number);
        match self.round.steps[at].work.makes().iter().find(is_mine) {
            Some(group) => self.add(*group, made),
            None => Err(Mishap::Wrong("a rank without a color got a communicator".into())),
        }
    }

    pub(super) fn tag(&mut self, group: usize, makes: usize) -> Result<(), Mishap> {
        let config = self.config.clone();
        let made = self.on_communicator(group, |comm| Ok(comm.split(Some(0), 0, &config)?))?;
        let made = made.ok_or_else(|| Mishap::Wrong("a rank with a color got no communicator".into()))?;
        self.groups.insert(makes, Group::Tagged(P2p::new(made)?));
        Ok(())
    }

    pub(super) fn shrink(&mut self, group: usize, without: &[u32], makes: usize) -> Result<(), Mishap> {
        if !self.round.members(makes).contains(&self.number) {
            return Ok(());
        }
        let config = self.config.clone();
        let without: Vec<Rank> = without.iter().copied().map(Rank).collect();
        let made = self.on_communicator(group, |comm| Ok(comm.shrink(&without, &config)?))?;
        self.add(makes, made)
    }

    /// Grows a group, as one of its members or as a new process.
    pub(super) fn grow(&mut self, step: &Step, host: u32, makes: usize) -> Result<(), Mishap> {
        let size = self.round.members(makes).len() as u32;
        let Some(rank) = self.round.groups[step.group].rank_of(self.number) else {
            return match self.join_grown(makes, size)? {
                Some(made) => self.add(makes, made),
                None => Ok(()),
            };
        };
        let config = self.config.clone();
        let folder = self.folder.clone();
        let made = self.on_communicator(step.group, |comm| {
            let id = if rank as u32 == host { Some(comm.grow_id()?) } else { None };
            if let Some(id) = &id {
                super::meeting::publish(&folder, &super::meeting::grow_file(makes), id);
            }
            Ok(comm.grow(id.as_ref(), size, &config)?)
        })?;
        self.add(makes, made)
    }

    /// Adds a group, after a check of its members.
    fn add(&mut self, group: usize, made: Communicator) -> Result<(), Mishap> {
        let plan = &self.round.groups[group];
        let (rank, size) = (plan.rank_of(self.number), plan.members.len());
        if rank != Some(made.rank().index()) || size != made.size() as usize {
            let is = format!("rank {} of {}", made.rank(), made.size());
            return Err(Mishap::Wrong(format!("group {group}: {is}, not rank {rank:?} of {size}")));
        }
        self.groups.insert(group, Group::Calls(SharedCommunicator::new(made)));
        Ok(())
    }

    /// Closes a group.
    pub(super) fn close(&mut self, group: usize) -> Result<(), Mishap> {
        match &self.groups[&group] {
            Group::Calls(comm) => comm.finalize()?,
            Group::Tagged(_) => {}
        }
        self.groups.remove(&group);
        Ok(())
    }
}

/// Makes a call by itself, checks its result, and overwrites its memory, which belongs to the caller again.
pub(super) fn one_call(comm: &mut Communicator, case: Case) -> Result<(), Mishap> {
    let way = case.kind.way;
    if let Way::By(name, segments) = way {
        comm.set_algorithm(Some(name), segments)?;
    }
    let mut exchange: Box<dyn AnyExchange> = exchange_of(case, comm)?;
    let ran = exchange.alone(comm);
    let checked = exchange.check();
    exchange.overwrite();
    if way != Way::Chosen {
        comm.set_algorithm(None, 0)?;
    }
    ran?;
    checked.map_err(Mishap::Wrong)
}

/// Makes another call than the other ranks. Its result is no matter.
fn mismatched_call(comm: &mut Communicator, case: Case, choice: u64) -> Result<(), Mishap> {
    match choice % 4 {
        0 => comm.barrier()?,
        1 => comm.broadcast(&mut vec![1u8; case.count], Rank(0))?,
        2 => {
            let mut exchange = exchange_of(Case { count: case.count + 1, ..case }, comm)?;
            exchange.alone(comm)?;
        }
        _ => {
            // No element type of the plan has this size and this operation.
            let mut data = vec![1u64; 3 * case.count + 1];
            comm.all_reduce_in_place(&mut data, ReduceOp::BitXor)?;
        }
    }
    Err(Mishap::Wrong("a call that no other rank makes has succeeded".into()))
}
