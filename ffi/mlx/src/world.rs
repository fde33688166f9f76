//! The job that this process is a rank of, from joining to leaving.
//!
//! The environment tells the rank, as for any program of tbccl. A process without a launcher is a world of
//! one rank, as with Open MPI.
//!
//! MLX programs wait for people: one rank serves requests while the others wait for it in a collective.
//! Therefore the default timeout of calls is a day; `TBCCL_TIMEOUT` overrides it. Ranks notice dead peers at
//! once all the same.

use crate::{
    activity::Activity,
    boundary::{Failure, Outcome, register_fork_handler},
    group::{Group, GroupOptions},
    leave,
    messages::Messages,
};
use std::{
    ffi::{CStr, CString},
    sync::{Arc, OnceLock},
    time::Duration,
};
use tbccl::{Communicator, Config, launcher_of_env};

/// Default time that a call may wait for live peers.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);

/// Variable that overrides the default timeout.
const TIMEOUT_VARIABLE: &str = "TBCCL_TIMEOUT";

/// Threads of a rank of MLX that take turns: the program's and the stream's. Without a core for each, a
/// thread that waits for a peer yields soon: the peer's other thread may need the core.
const THREADS_OF_RANK: u32 = 2;

/// The job: the group of all ranks, and the messages between them. Clones are the same job; it ends when the
/// last one, and all groups, are dropped.
#[derive(Clone, Debug)]
pub struct World {
    group: Arc<Group>,
    messages: Arc<Messages>,
    activity: Arc<Activity>,
}

impl World {
    /// Joins the job of the launcher that started this process, and waits for the other ranks. Without a
    /// launcher, makes a world of this process alone.
    ///
    /// # Errors
    /// Those of joining a job, with their remedies.
    pub fn join() -> Outcome<World> {
        register_fork_handler();
        let config = Config::from_env()?;
        let communicator = match launcher_of_env() {
            Some(_) => Communicator::from_env_with(&config)?,
            None => Communicator::local(1, &config)?
                .pop()
                .ok_or_else(|| Failure::usage("a world of one rank has no communicator"))?,
        };
        World::of(communicator, config)
    }

    /// Returns the world of a communicator of all ranks.
    pub(crate) fn of(mut communicator: Communicator, config: Config) -> Outcome<World> {
        let has_cores = communicator.spin_long_with_cores_for(THREADS_OF_RANK, &config);
        let timeout = if has_timeout() { config.timeout } else { DEFAULT_TIMEOUT };
        let activity = Activity::new(!has_cores);
        let options = GroupOptions { config, timeout, activity: Arc::clone(&activity) };
        let group = Group::world(communicator, options)?;
        let messages = Messages::new(group.duplicate()?, Arc::clone(&activity))?;
        Ok(World { group: Arc::new(group), messages: Arc::new(messages), activity })
    }

    /// Returns the group of all ranks.
    #[must_use]
    pub fn group(&self) -> &Arc<Group> {
        &self.group
    }

    /// Returns the point-to-point messages of the job.
    #[must_use]
    pub fn messages(&self) -> &Arc<Messages> {
        &self.messages
    }

    /// Waits until this rank may leave the job: until its sent messages have arrived, and no rank waits for
    /// a call of this one. Calls of other threads go on meanwhile.
    ///
    /// Waits for a bounded time: 3 s without a call or computation of this process, or 60 s in all, after
    /// which its calls in progress are aborted. `groups` are the groups made by splits. The job ends when
    /// all groups and clones of this have been dropped.
    pub fn prepare_to_leave<'a>(&self, groups: impl IntoIterator<Item = &'a Arc<Group>>) {
        if leave::wait_for_peers(&self.messages, &self.activity) {
            return;
        }
        self.messages.abort();
        self.group.abort();
        groups.into_iter().for_each(|group| group.abort());
    }
}

/// Whether the environment sets the timeout of calls.
pub(crate) fn has_timeout() -> bool {
    std::env::var_os(TIMEOUT_VARIABLE).is_some()
}

/// Returns the launcher whose variables this process has.
#[must_use]
pub fn launcher() -> Option<&'static CStr> {
    static NAME: OnceLock<CString> = OnceLock::new();
    if let Some(name) = NAME.get() {
        return Some(name);
    }
    // Not kept while there is none: a program may set the variables later, as exo does.
    let name = CString::new(launcher_of_env()?).ok()?;
    Some(NAME.get_or_init(|| name))
}
