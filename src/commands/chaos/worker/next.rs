//! The next communicator: the processes of the world that live make one, and use it.

use super::{Group, Mishap, Worker, calls::one_call};
use crate::{
    commands::chaos::{
        account::{Report, now},
        plan::{Sizes, call},
    },
    reference::{Random, mix},
};
use std::time::{Duration, Instant};
use tbccl::{Communicator, Error, Rank};

/// Calls on the next communicator.
const CALLS: usize = 4;

/// Time in which a call on a failed communicator must return.
const AT_ONCE: Duration = Duration::from_secs(1);

impl Worker<'_> {
    /// Makes and uses the communicator of the processes that are not lost.
    pub(super) fn make_next(&mut self, lost: &[u32]) {
        self.check_failed();
        let mut random = Random(mix(self.round.seed, self.round.number as usize) ^ 0x4e_78);
        // Nothing of the failed communicators may be needed, nor be in the way.
        if random.happens(1, 2) {
            self.groups.retain(|group, _| *group == 0);
            self.failed.retain(|group, _| *group == 0);
        }
        if self.number >= self.round.ranks {
            return;
        }
        let began = now();
        let made = self.next(lost).map_err(Mishap::from).and_then(|comm| use_it(comm, &mut random));
        let error = made.err().map(|mishap| match mishap {
            Mishap::Failed(error) => error.to_string(),
            Mishap::Wrong(text) => format!("wrong result: {text}"),
        });
        self.reporter.say(&Report::Next { took: now() - began, error });
    }

    fn next(&mut self, lost: &[u32]) -> Result<Communicator, Error> {
        let world = self.groups.get(&0).or(self.failed.get(&0).map(|(group, _)| group));
        if let Some(Group::Calls(world)) = world {
            let without: Vec<Rank> = lost.iter().copied().map(Rank).collect();
            return world.with(|comm| comm.shrink(&without, &self.config))?;
        }
        // Not all have joined, so that there is no communicator to shrink.
        let living: Vec<u32> = (0..self.round.ranks).filter(|number| !lost.contains(number)).collect();
        let rank = living.iter().position(|number| *number == self.number).unwrap_or_default() as u32;
        self.meet_by_id("next", rank, living.len() as u32, rank == 0)
    }

    /// Checks that calls on failed communicators fail again, at once.
    fn check_failed(&self) {
        for (index, (group, error)) in &self.failed {
            // An error of making a group need not fail its parent.
            let Group::Calls(comm) = group else { continue };
            if comm.async_error().is_none() {
                continue;
            }
            let began = Instant::now();
            let again = comm.with(|comm| comm.barrier()).and_then(|result| result);
            let text = match again {
                Ok(()) => format!("group {index} has failed with `{error}`, and a barrier succeeded"),
                Err(_) if began.elapsed() > AT_ONCE => {
                    format!("group {index} has failed, and a barrier took {:?} to fail", began.elapsed())
                }
                Err(_) => continue,
            };
            self.reporter.say(&Report::Wrong { step: None, text });
        }
    }
}

/// Makes calls on a new communicator, and closes it.
fn use_it(mut comm: Communicator, random: &mut Random) -> Result<(), Mishap> {
    let sizes = Sizes { ranks: comm.size(), max_bytes: 256 << 10, names_algorithms: false };
    for _ in 0..CALLS {
        one_call(&mut comm, call(sizes, random))?;
    }
    Ok(comm.barrier()?)
}
