//! Jobs of `tbccl run` whose ranks are this test program.

use rustix::process::Signal;
use std::path::Path;
use support::{Finished, Process, rank_arguments, tbccl};

/// Variable of the folder with the files that ranks wait for.
pub(crate) const FOLDER: &str = "FOLDER_OF_THE_TEST";

/// A job of two ranks with an endpoint of metrics.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) process: Process,
    folder: tempfile::TempDir,
}

impl Job {
    /// Starts a job in a role; returns once its ranks have joined and done the first part of their work.
    pub(crate) fn start(role: &str, port: Option<u16>, env: &[(&str, &str)]) -> Job {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = tbccl();
        command.args(["run", "-n", "2", "--"]).args(rank_arguments());
        command.env("ROLE", role).env(FOLDER, folder.path()).envs(env.iter().copied());
        if let Some(port) = port {
            command.env("TBCCL_METRICS", port.to_string());
        }
        let mut process = Process::start(command);
        process.wait_for("worked", 2);
        Job { process, folder }
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Lets a rank leave.
    pub(crate) fn release(&self, rank: &str) {
        std::fs::write(self.folder().join(format!("leave-{rank}")), "").expect("our folder");
    }

    /// Lets all ranks leave, and returns the end of the job.
    pub(crate) fn finish(self) -> Finished {
        ["0", "1"].iter().for_each(|rank| self.release(rank));
        self.process.finish()
    }

    /// Ends the job by a signal.
    pub(crate) fn end(self) -> Finished {
        self.process.signal(Signal::TERM);
        self.process.finish()
    }
}
