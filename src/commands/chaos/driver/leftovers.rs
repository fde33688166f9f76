//! The folders of rounds, and anything that is left when the processes of a round have ended.

use super::{super::plan::Round, CommandError, fabric, system};
use rustix::process::{Pid, Signal, getuid, test_kill_process};
use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::{Duration, Instant},
};

/// The variable by which all processes of a round are found, in whatever session. Its value is the folder.
/// The library refuses names that begin with its own and are no options.
pub(super) const MARK: &str = "CHAOS_ROUND";

/// Time that processes have to end after the launcher: an agent gives its ranks three seconds.
const ENDING_TIME: Duration = Duration::from_secs(8);

/// The folder of a campaign, which is removed at its end. The next campaign removes those of killed ones.
#[derive(Debug)]
pub(in crate::commands::chaos) struct Workplace {
    path: PathBuf,
    /// The folder to which the folders of failed rounds are moved.
    keep: Option<PathBuf>,
}

impl Workplace {
    /// Creates the folder, in memory where possible.
    pub(in crate::commands::chaos) fn create(keep: Option<PathBuf>) -> Result<Workplace, CommandError> {
        let memory = Path::new("/dev/shm");
        let base = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let prefix = format!("chaos-{}-", getuid().as_raw());
        for entry in fs::read_dir(&base).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let owner = name.strip_prefix(&prefix).and_then(|owner| owner.parse::<i32>().ok());
            let owner = owner.and_then(Pid::from_raw);
            if owner.is_some_and(|owner| test_kill_process(owner) == Err(rustix::io::Errno::SRCH)) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        let path = base.join(format!("{prefix}{}", std::process::id()));
        let created = fs::create_dir_all(&path).and_then(|()| keep.iter().try_for_each(fs::create_dir_all));
        created.map_err(|error| CommandError::new(format_args!("{}: {error}", path.display())))?;
        Ok(Workplace { path, keep })
    }

    /// Creates the folder of a round.
    pub(super) fn folder(&self, round: &Round) -> Result<PathBuf, CommandError> {
        let path = self.round_folder(round);
        let made = fs::create_dir_all(path.join("tmp")).and_then(|()| fs::create_dir_all(path.join("dumps")));
        made.map_err(|error| CommandError::new(format_args!("{}: {error}", path.display())))?;
        Ok(path)
    }

    /// Removes the folder of a round, or keeps it if the round has failed and the user wants it.
    pub(super) fn put_away(&self, round: &Round, has_failed: bool) {
        let path = self.round_folder(round);
        if let (Some(keep), true) = (&self.keep, has_failed) {
            let _ = copy(&path, &keep.join(format!("round-{}-{}", round.seed, round.number)));
        }
        let _ = fs::remove_dir_all(path);
    }

    fn round_folder(&self, round: &Round) -> PathBuf {
        self.path.join(format!("round-{}", round.number))
    }
}

impl Drop for Workplace {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Copies the files of a folder, and of the folders in it.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)?.flatten() {
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        // The memory of software devices is large and of no use.
        if path.is_dir() && !path.ends_with(fabric::FOLDER) {
            copy(&path, &target)?;
        } else if path.is_file() {
            fs::copy(&path, &target)?;
        }
    }
    Ok(())
}

/// Describes what is left of a round, and ends processes that are.
pub(super) fn find_and_end(folder: &Path, is_interrupted: &AtomicBool) -> Vec<String> {
    let mark = folder.to_string_lossy().into_owned();
    let until = Instant::now() + ENDING_TIME;
    let processes = loop {
        let found = system::with_variable(MARK, &mark);
        if found.is_empty() || Instant::now() > until || is_interrupted.load(Relaxed) {
            break found;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let describe = |pid: &u32| format!("process {pid} is left: {}", system::command_line(*pid));
    let mut found: Vec<String> = processes.iter().map(describe).collect();
    processes.iter().for_each(|pid| system::signal(*pid, Signal::KILL));
    system::reap();
    found.extend(names(&folder.join("tmp")).into_iter().map(|name| format!("temporary file {name} is left")));
    found
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}
