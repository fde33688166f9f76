//! Jobs whose ranks run on the nodes of a software fabric.

use crate::{
    message::Message,
    process::{Finished, Process},
    programs::{rank_arguments, tbccl_with_software_device},
    wiring::Wiring,
};
use std::{
    path::{Path, PathBuf},
    process::Output,
};

/// A running job on a fabric of its own.
#[derive(Debug)]
pub struct FabricJob {
    process: Process,
    /// The folder of the fabric file, where tests may keep other files.
    pub home: tempfile::TempDir,
    /// The folder of the running fabric.
    folder: PathBuf,
}

impl FabricJob {
    /// Starts one rank on each node, in a role and with these environment variables.
    #[must_use]
    pub fn start(wiring: &Wiring, link: &str, role: &str, env: &[(&str, &str)]) -> FabricJob {
        FabricJob::start_with(wiring, link, role, env, |_| ())
    }

    /// Starts as [`FabricJob::start`], after `prepare` has been called with the folder `home`. Variables
    /// refer to it as `$HOME_OF_TEST`.
    #[must_use]
    pub fn start_with(
        wiring: &Wiring,
        link: &str,
        role: &str,
        env: &[(&str, &str)],
        prepare: impl FnOnce(&Path),
    ) -> FabricJob {
        FabricJob::start_several((wiring, 1), link, role, env, prepare)
    }

    /// Starts as [`FabricJob::start_with`], with `per_node` ranks on each node.
    ///
    /// # Panics
    /// If the job does not start.
    #[must_use]
    pub fn start_several(
        (wiring, per_node): (&Wiring, u32),
        link: &str,
        role: &str,
        env: &[(&str, &str)],
        prepare: impl FnOnce(&Path),
    ) -> FabricJob {
        let home = tempfile::tempdir().expect("a temporary folder");
        let fabric = home.path().join("fabric.toml");
        std::fs::write(&fabric, wiring.text(link)).expect("the folder of this test");
        prepare(home.path());
        let mut command = tbccl_with_software_device();
        command.args(["fabric", "run", "--timeout", "90", "--per-node", &per_node.to_string()]);
        // Without a failure the option makes no difference.
        let is_survived = role.starts_with("ladder") || role == "close_after_kill";
        command.args(is_survived.then_some("--keep-going"));
        command.arg("--fabric").arg(&fabric).args(["--", "env"]);
        // The last values win, so they override those of the launcher.
        let role = ("ROLE", role);
        for (name, value) in [("TBCCL_TRANSPORT", "verbs"), role].iter().chain(env) {
            let value = value.replace("$HOME_OF_TEST", &home.path().to_string_lossy());
            command.arg(format!("{name}={value}"));
        }
        command.args(rank_arguments());
        let process = Process::start(command);
        let folder = folder_of(process.id());
        FabricJob { process, home, folder }
    }

    /// Runs a job until it ends.
    #[must_use]
    pub fn run(wiring: &Wiring, link: &str, role: &str, env: &[(&str, &str)]) -> Finished {
        FabricJob::start(wiring, link, role, env).finish()
    }

    /// Returns the next message.
    pub fn next_message(&self) -> Message {
        self.process.next_message()
    }

    /// Waits until each of `ranks` ranks has printed a message with this word; see [`Process::wait_for`].
    pub fn wait_for(&mut self, word: &str, ranks: u32) -> Vec<String> {
        self.process.wait_for(word, ranks)
    }

    fn fabric(&self, args: &[&str]) -> Output {
        let mut command = tbccl_with_software_device();
        command.args(["fabric", args[0], "--dir"]).arg(&self.folder).args(&args[1..]);
        let output = command.output().expect("tbccl starts");
        if !output.status.success() {
            // The job has probably ended; the last messages of its ranks tell why.
            let last = self.process.last_messages();
            panic!("{args:?}: {}; the ranks printed {last:?}", String::from_utf8_lossy(&output.stderr));
        }
        output
    }

    /// Injects a fault or clears it, with `tbccl fabric fault`.
    pub fn fault(&self, args: &[&str]) {
        let mut all = vec!["fault"];
        all.extend(args);
        self.fabric(&all);
    }

    /// Returns the bytes that each cable has carried, in both directions together.
    ///
    /// # Panics
    /// If the fabric is not running.
    pub fn bytes_per_cable(&self) -> Vec<u64> {
        let text = self.fabric(&["stat", "--json"]).stdout;
        let stat: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
        let cables = stat["cables"].as_array().unwrap_or_else(|| panic!("cables in {stat}"));
        let sum = |cable: &serde_json::Value| {
            let lanes = cable["lanes"].as_array().unwrap_or_else(|| panic!("lanes in {cable}"));
            lanes.iter().map(|lane| lane["bytes"].as_u64().expect("a number")).sum()
        };
        cables.iter().map(sum).collect()
    }

    /// Waits until the job ends, and asserts that its fabric is gone.
    ///
    /// # Panics
    /// As for [`Process::finish`], and if the fabric is left.
    #[must_use]
    pub fn finish(self) -> Finished {
        let done = self.process.finish();
        assert!(!self.folder.exists(), "{} is left", self.folder.display());
        done
    }
}

/// Returns the fabric folder of a `tbccl fabric run` process.
fn folder_of(run: u32) -> PathBuf {
    let user = rustix::process::getuid().as_raw();
    let memory = Path::new("/dev/shm");
    let base = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    base.join(format!("tbccl-fabric-{user}-{run}"))
}
