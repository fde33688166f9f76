//! Groups: their collectives, splits, and contexts in point-to-point messages.
//!
//! A group splits over links of its own. MLX splits on its main thread while its stream threads run
//! collectives, and the order of the two differs from rank to rank. Over the same links that would be a
//! mismatch.
//!
//! All groups of a job share the point-to-point messages of the world. The context of a group tells its
//! messages from those of other groups. Its first rank counts the groups that it is the first rank of, and
//! that rank's number in the world makes the context unique.
//!
//! # Safety
//! The caller of a collective vouches for its buffers until the call returns.

use crate::{
    activity::Activity,
    boundary::{Failure, Outcome},
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};
use tbccl::{CallOptions, Communicator, Config, Rank, RawCall, SharedCommunicator};

/// Number of the next group that this rank may be the first rank of. Number 0 is the world's.
static GROUPS_LED: AtomicU32 = AtomicU32::new(1);

/// Bytes of registered memory for links that only carry colors and keys.
const CONTROL_SLAB_BYTES: u64 = 1 << 20;

/// One rank of a group.
#[derive(Debug)]
pub struct Group {
    /// Communicator of the group's collectives.
    calls: SharedCommunicator,
    /// Communicator of the group's splits.
    splits: SharedCommunicator,
    /// World ranks of the group's ranks.
    members: Vec<Rank>,
    /// Number of the group in point-to-point messages.
    context: u32,
    options: GroupOptions,
}

/// Options that all groups of a world share, and their counter of calls.
#[derive(Clone, Debug)]
pub(crate) struct GroupOptions {
    pub(crate) config: Config,
    /// Timeout of calls.
    pub(crate) timeout: Duration,
    /// Counter of calls in progress.
    pub(crate) activity: Arc<Activity>,
}

impl GroupOptions {
    /// Returns the configuration of links that only carry colors and keys.
    fn control_config(&self) -> Config {
        Config { slab_bytes: Some(CONTROL_SLAB_BYTES), ..self.config.clone() }
    }

    /// Returns a communicator of the same ranks with links of its own, for calls or for messages.
    /// All ranks get a communicator, or none does.
    fn duplicate(&self, of: &mut Communicator) -> Outcome<Communicator> {
        let made = of.split(Some(0), 0, &self.config)?;
        made.ok_or_else(|| Failure::usage("a split with a color made no group"))
    }
}

/// Sets the timeout of calls, and makes a communicator shareable between threads.
fn shared(mut made: Communicator, options: &GroupOptions) -> SharedCommunicator {
    made.set_timeout(options.timeout);
    SharedCommunicator::new(made)
}

impl Group {
    /// Returns the group of all ranks.
    pub(crate) fn world(mut calls: Communicator, options: GroupOptions) -> Outcome<Group> {
        let splits = calls.split(Some(0), 0, &options.control_config())?;
        let splits = splits.ok_or_else(|| Failure::usage("a split with a color made no group"))?;
        Ok(Group {
            members: (0..calls.size()).map(Rank).collect(),
            splits: shared(splits, &options),
            calls: shared(calls, &options),
            context: 0,
            options,
        })
    }

    /// Returns the group of the ranks that gave the same color, ordered by key; `None` without a color.
    pub fn split(&self, color: Option<u32>, key: i32) -> Outcome<Option<Group>> {
        let options = &self.options;
        let made = self.splits.with(|comm| comm.split(color, key, &options.control_config()))??;
        let Some(mut splits) = made else { return Ok(None) };
        let calls = options.duplicate(&mut splits)?;
        let (members, context) = self.exchange_members(&mut splits)?;
        let options = options.clone();
        Ok(Some(Group {
            splits: shared(splits, &options),
            calls: shared(calls, &options),
            members,
            context,
            options,
        }))
    }

    /// Exchanges world ranks within a new group, and returns them with the group's context.
    fn exchange_members(&self, group: &mut Communicator) -> Outcome<(Vec<Rank>, u32)> {
        let me = self.members[self.rank().index()];
        let own = [me.0, GROUPS_LED.fetch_add(1, Relaxed)];
        let mut gathered = vec![0u32; own.len() * group.size() as usize];
        group.all_gather(&own, &mut gathered)?;
        let members: Vec<Rank> = gathered.chunks_exact(own.len()).map(|entry| Rank(entry[0])).collect();
        let (first, number) = (gathered[0], gathered[1]);
        // `MAX_RANKS` exceeds every rank number, so no two first ranks give the same context.
        let context = number.checked_mul(tbccl::MAX_RANKS).and_then(|number| number.checked_add(first));
        Ok((members, context.ok_or_else(|| Failure::usage("too many groups"))?))
    }

    /// Makes a collective call, after all calls of this group that other threads have begun.
    ///
    /// # Errors
    /// Those of the call.
    ///
    /// # Safety
    /// As for [`SharedCommunicator::call`].
    #[inline]
    pub unsafe fn call(&self, call: &RawCall) -> Outcome {
        let _in_progress = self.options.activity.begin();
        // SAFETY: the caller's promise.
        unsafe { self.calls.call(call, &CallOptions::default())? };
        Ok(())
    }

    /// Aborts the calls in progress, and makes later ones fail.
    pub(crate) fn abort(&self) {
        self.calls.abort();
        self.splits.abort();
    }

    /// Returns this process's rank in the group.
    pub fn rank(&self) -> Rank {
        self.calls.rank()
    }

    /// Returns the number of ranks.
    #[inline]
    pub fn size(&self) -> u32 {
        self.calls.size()
    }

    /// Returns the group's number in point-to-point messages.
    pub(crate) fn context(&self) -> u32 {
        self.context
    }

    /// Returns the world rank of a rank of this group.
    pub fn world_rank(&self, rank: i32) -> Outcome<Rank> {
        let member = usize::try_from(rank).ok().and_then(|rank| self.members.get(rank));
        member.copied().ok_or_else(|| Failure::usage(format!("rank {rank} is not one of 0..{}", self.size())))
    }

    /// Returns the rank in this group of a world rank.
    pub fn rank_of_world(&self, rank: Rank) -> Option<i32> {
        self.members.iter().position(|member| *member == rank).map(|at| at as i32)
    }

    /// Returns a communicator of the group's ranks with links of its own.
    pub(crate) fn duplicate(&self) -> Outcome<Communicator> {
        let mut made = self.splits.with(|comm| self.options.duplicate(comm))??;
        made.set_timeout(self.options.timeout);
        Ok(made)
    }
}
