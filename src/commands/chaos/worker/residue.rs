//! Descriptors, threads and mappings that a process still has after it has closed all communicators.

use std::{
    collections::BTreeMap,
    fs,
    time::{Duration, Instant},
};

/// Time that threads and descriptors have to go after everything was closed.
const SETTLING_TIME: Duration = Duration::from_secs(3);

/// Looks in that time. On a machine that is busy with programs of a higher priority it takes longer: other
/// threads of this process are to run between two looks.
const SETTLING_LOOKS: u32 = 100;

/// Threads that the library keeps for the life of the process, with the sockets that belong to each.
const SERVICES: [(&str, usize); 1] = [("tbccl-signals", 4)];

/// Parts of the paths of mappings that belong to communicators.
const MAPPINGS: [&str; 3] = ["memfd:", "/dev/shm/", "softrdma-"];

/// The state of a process before it joins.
#[derive(Debug)]
pub(super) struct Baseline {
    descriptors: BTreeMap<String, String>,
    threads: usize,
    mappings: usize,
}

impl Baseline {
    /// Looks at this process.
    pub(super) fn take() -> Baseline {
        Baseline { descriptors: descriptors(), threads: threads().len(), mappings: mappings().len() }
    }

    /// Describes what this process has in addition now. Waits for it to go.
    pub(super) fn residue(&self) -> Vec<String> {
        let until = Instant::now() + SETTLING_TIME;
        let mut looks = 0;
        loop {
            let found = self.difference();
            if found.is_empty() || looks >= SETTLING_LOOKS && Instant::now() > until {
                return found;
            }
            looks += 1;
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn difference(&self) -> Vec<String> {
        let (threads, mappings) = (threads(), mappings());
        let is_new = |(number, target): &(String, String)| self.descriptors.get(number) != Some(target);
        let (sockets, mut found): (Vec<_>, Vec<_>) = descriptors()
            .into_iter()
            .filter(is_new)
            .map(|(number, target)| format!("descriptor {number} of {target}"))
            .partition(|text| text.contains("socket:"));
        let services: Vec<_> =
            SERVICES.iter().filter(|(name, _)| threads.iter().any(|thread| thread == name)).collect();
        let theirs = services.iter().map(|(_, sockets)| sockets).sum::<usize>();
        if sockets.len() > theirs {
            found.extend(sockets);
        }
        let more = threads.len().saturating_sub(self.threads + services.len());
        if more > 0 {
            found.push(format!("{more} threads: {}", threads.join(", ")));
        }
        if mappings.len() > self.mappings {
            found.push(format!("{} mappings, as {}", mappings.len() - self.mappings, mappings[0]));
        }
        found
    }
}

/// Returns the open descriptors by number, with their targets.
fn descriptors() -> BTreeMap<String, String> {
    let own = format!("/proc/{}/fd", std::process::id());
    let entries = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let targets = entries.filter_map(|entry| {
        let target = fs::read_link(entry.path()).ok()?.to_string_lossy().into_owned();
        // The folder that is being read is open, too.
        (target != own).then(|| (entry.file_name().to_string_lossy().into_owned(), target))
    });
    targets.collect()
}

/// Returns the names of the threads.
fn threads() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let name = |task: fs::DirEntry| fs::read_to_string(task.path().join("comm")).unwrap_or_default();
    tasks.map(|task| name(task).trim().to_owned()).collect()
}

/// Returns the mappings of shared memory.
fn mappings() -> Vec<String> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let is_shared = |line: &&str| MAPPINGS.iter().any(|part| line.contains(part));
    maps.lines().filter(is_shared).map(str::to_owned).collect()
}
