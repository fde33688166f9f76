//! Joining by the means of the round, and the files by which processes of a round find each other.

use super::Worker;
use crate::commands::chaos::settings::Start;
use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};
use tbccl::{Communicator, Error, UniqueId};

/// Name of the driver's file that ends the wait of processes, with the numbers of the lost ones.
pub(in crate::commands::chaos) const GO: &str = "go";

/// Time limit of waits for files. The driver ends processes earlier.
const PATIENCE: Duration = Duration::from_secs(90);

/// Interval between looks at files.
const INTERVAL: Duration = Duration::from_millis(3);

/// Returns the name of the file with the id of a group that grows.
pub(super) fn grow_file(group: usize) -> String {
    format!("grow.{group}")
}

/// Writes an id to a file, which appears complete.
pub(super) fn publish(folder: &Path, name: &str, id: &UniqueId) {
    let draft = folder.join(format!("{name}.draft"));
    if fs::write(&draft, id.as_bytes()).is_ok() {
        let _ = fs::rename(draft, folder.join(name));
    }
}

impl Worker<'_> {
    /// Joins the world.
    pub(super) fn meet(&self) -> Result<Communicator, Error> {
        match self.round.start {
            Start::Run | Start::Hosts | Start::Rendezvous => Communicator::from_env_with(&self.config),
            Start::Id => self.meet_by_id("world", self.number, self.round.ranks, self.number == 0),
        }
    }

    /// Joins by an id, which one of the ranks creates.
    pub(super) fn meet_by_id(
        &self,
        name: &str,
        rank: u32,
        size: u32,
        creates: bool,
    ) -> Result<Communicator, Error> {
        if creates {
            let id = UniqueId::create()?;
            publish(&self.folder, name, &id);
            return Communicator::from_unique_id(&id, rank, size, &self.config);
        }
        let id = self.wait_for_id(name, |_| false);
        let id = id.ok_or_else(|| Error::Bootstrap(format!("nobody has written the id `{name}`")))?;
        Communicator::from_unique_id(&id, rank, size, &self.config)
    }

    /// Joins a group that grows, unless the round ends before.
    pub(super) fn join_grown(&mut self, makes: usize, size: u32) -> Result<Option<Communicator>, Error> {
        let rank = self.round.groups[makes].rank_of(self.number).unwrap_or_default() as u32;
        let Some(id) = self.wait_for_id(&grow_file(makes), |folder| folder.join(GO).exists()) else {
            return Ok(None);
        };
        // The others have come to the step only now.
        self.began = crate::commands::chaos::account::now();
        Communicator::from_unique_id(&id, rank, size, &self.config).map(Some)
    }

    fn wait_for_id(&self, name: &str, is_over: impl Fn(&Path) -> bool) -> Option<UniqueId> {
        let path = self.folder.join(name);
        let bytes = wait_for(|| match fs::read(&path) {
            Ok(bytes) => Some(Some(bytes)),
            Err(_) => is_over(&self.folder).then_some(None),
        });
        UniqueId::from_bytes(bytes.flatten()?.try_into().ok()?).ok()
    }

    /// Waits until the driver names the lost processes of the world.
    pub(super) fn wait_for_driver(&self) -> Option<Vec<u32>> {
        let path = self.folder.join(GO);
        wait_for(|| serde_json::from_slice(&fs::read(&path).ok()?).ok())
    }
}

fn wait_for<R>(mut look: impl FnMut() -> Option<R>) -> Option<R> {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return Some(found);
        }
        if Instant::now() > until {
            return None;
        }
        std::thread::sleep(INTERVAL);
    }
}
