//! A communicator as MPI has them: its collectives, the way to make others of it, and its p2p.
//!
//! Splitting has links of its own. MLX splits on its main thread while collectives wait on the threads of its streams, and
//! which of the two comes first differs from rank to rank; over the same links that would be a mismatch. RDMA devices have few
//! connections, and splitting needs no speed: it goes over TCP there, and so do the calls of groups for which a device has none
//! left.
//!
//! All groups of a job share the world's p2p. Each has a number of its own there: its first rank counts the groups that it
//! is the first rank of, and its rank in the world makes the number unique.

use crate::boundary::{Failure, Outcome};
use std::{
    sync::{
        Once,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};
use tbccl::{Communicator, Config, Rank, SharedCommunicator, Transport};

/// Groups that this rank may be the first of, so far. The world is not counted.
static GROUPS: AtomicU32 = AtomicU32::new(1);

/// Bytes for registered memory of links on which only colours and keys travel.
const NARROW_SLAB_BYTES: u64 = 1 << 20;

/// One rank of a communicator.
#[derive(Debug)]
pub(crate) struct Group {
    /// For calls.
    calls: SharedCommunicator,
    /// For splitting.
    splits: SharedCommunicator,
    /// What its ranks are called in the world.
    members: Vec<Rank>,
    /// Its number in the world's p2p.
    context: u32,
    limits: Limits,
}

/// How a group is made, and how long its calls may wait.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    config: Config,
    patience: Duration,
    /// The same transport without RDMA devices, if it has any.
    plain: Option<Transport>,
}

impl Limits {
    /// For groups of a world that has come together with these options.
    pub(crate) fn of(world: &Communicator, config: Config, patience: Duration) -> Limits {
        let plain = match world.transport() {
            "verbs" => Some(Transport::Tcp),
            name if name.contains("verbs") => Some(Transport::Mixed),
            _ => None,
        };
        Limits { config, patience, plain }
    }

    /// For links on which only colours and keys travel.
    fn narrow(&self) -> Config {
        Config { slab_bytes: Some(NARROW_SLAB_BYTES), ..self.without_devices() }
    }

    fn without_devices(&self) -> Config {
        Config { transport: self.plain.unwrap_or(self.config.transport), ..self.config.clone() }
    }

    /// A communicator of all ranks of another, for calls or for p2p. All ranks have it, or none.
    fn twin(&self, of: &mut Communicator) -> Outcome<Communicator> {
        let everyone = Some(0);
        let made = of.split(everyone, 0, &self.config).or_else(|error| {
            if self.plain.is_none() || of.failure().is_some() {
                return Err(error);
            }
            static SAID: Once = Once::new();
            if of.rank().0 == 0 {
                SAID.call_once(|| eprintln!("tbccl: warning: some groups go over TCP: {error}"));
            }
            of.split(everyone, 0, &self.without_devices())
        })?;
        made.ok_or_else(|| Failure::wrong("a colour was given and no group was made"))
    }
}

/// A communicator that is about to be shared, with the patience that calls have.
fn shared(mut made: Communicator, limits: &Limits) -> SharedCommunicator {
    made.set_timeout(limits.patience);
    SharedCommunicator::new(made)
}

impl Group {
    /// All ranks.
    pub(crate) fn world(mut calls: Communicator, limits: Limits) -> Outcome<Group> {
        let splits = calls.split(Some(0), 0, &limits.narrow())?;
        let splits = splits.ok_or_else(|| Failure::wrong("a colour was given and no group was made"))?;
        Ok(Group {
            members: (0..calls.size()).map(Rank).collect(),
            splits: shared(splits, &limits),
            calls: shared(calls, &limits),
            context: 0,
            limits,
        })
    }

    /// Those ranks of this one that give the same colour, in the order of their keys; none for who gives no colour.
    pub(crate) fn split(&self, color: Option<u32>, key: i32) -> Outcome<Option<Group>> {
        let limits = &self.limits;
        let made = self.splits.with(|comm| comm.split(color, key, &limits.narrow()))??;
        let Some(mut splits) = made else { return Ok(None) };
        let calls = limits.twin(&mut splits)?;
        let (members, context) = self.introduce(&mut splits)?;
        let limits = limits.clone();
        Ok(Some(Group {
            splits: shared(splits, &limits),
            calls: shared(calls, &limits),
            members,
            context,
            limits,
        }))
    }

    /// What the ranks of a new group are called in the world, and its number in the world's p2p.
    fn introduce(&self, group: &mut Communicator) -> Outcome<(Vec<Rank>, u32)> {
        let me = self.members[self.rank().index()];
        let said = [me.0, GROUPS.fetch_add(1, Relaxed)];
        let mut heard = vec![0u32; said.len() * group.size() as usize];
        group.all_gather(&said, &mut heard)?;
        let members: Vec<Rank> = heard.chunks_exact(said.len()).map(|said| Rank(said[0])).collect();
        let (first, number) = (heard[0], heard[1]);
        // More than all ranks that there can be, so that no two first ranks give the same number.
        let context = number.checked_mul(tbccl::MAX_RANKS).and_then(|number| number.checked_add(first));
        Ok((members, context.ok_or_else(|| Failure::wrong("too many groups were made"))?))
    }

    #[inline]
    pub(crate) fn calls(&self) -> &SharedCommunicator {
        &self.calls
    }

    pub(crate) fn rank(&self) -> Rank {
        self.calls.rank()
    }

    #[inline]
    pub(crate) fn size(&self) -> u32 {
        self.calls.size()
    }

    /// Its number in the world's p2p.
    pub(crate) fn context(&self) -> u32 {
        self.context
    }

    /// What a rank of it is called in the world.
    pub(crate) fn in_world(&self, rank: i32) -> Outcome<Rank> {
        let member = usize::try_from(rank).ok().and_then(|rank| self.members.get(rank));
        member.copied().ok_or_else(|| Failure::wrong(format!("rank {rank} is not one of 0..{}", self.size())))
    }

    /// What a rank of the world is called in it.
    pub(crate) fn of_world(&self, rank: Rank) -> Option<i32> {
        self.members.iter().position(|member| *member == rank).map(|at| at as i32)
    }

    /// A communicator of all of its ranks, for something that needs links of its own.
    pub(crate) fn twin(&self) -> Outcome<Communicator> {
        let mut made = self.splits.with(|comm| self.limits.twin(comm))??;
        made.set_timeout(self.limits.patience);
        Ok(made)
    }
}
