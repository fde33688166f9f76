//! A job whose ranks are this program on the nodes of a fabric, and the messages they print.

use crate::{software_device::tbccl, wiring::Wiring};
use std::{
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, Output, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant, SystemTime},
};

/// Time limit of any wait, generous for a busy machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(100);

/// Returns milliseconds since the epoch, a clock that processes share.
pub(crate) fn now() -> u128 {
    SystemTime::UNIX_EPOCH.elapsed().expect("after 1970").as_millis()
}

/// A line that a rank printed: `@word rank rest`.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) word: String,
    pub(crate) rank: u32,
    pub(crate) rest: String,
}

impl Message {
    fn parse(line: &str) -> Option<Message> {
        let mut parts = line[line.find('@')? + 1..].trim_end().splitn(3, ' ');
        let word = parts.next()?.to_owned();
        let rank = parts.next()?.parse().ok()?;
        Some(Message { word, rank, rest: parts.next().unwrap_or_default().to_owned() })
    }
}

/// A running job.
pub(crate) struct Job {
    process: Child,
    /// The folder of the fabric file, where tests may keep other files.
    pub(crate) home: tempfile::TempDir,
    /// The folder of the running fabric.
    folder: PathBuf,
    lines: mpsc::Receiver<Message>,
    /// Messages that arrived while another one was awaited.
    earlier: Vec<Message>,
    stderr: Option<thread::JoinHandle<String>>,
}

/// A job that has ended and left no files behind.
#[derive(Debug)]
pub(crate) struct Finished {
    /// Exit status, or 128 + the signal that killed the job.
    pub(crate) code: i32,
    pub(crate) messages: Vec<Message>,
    pub(crate) stderr: String,
}

impl Finished {
    /// Returns the messages with this word, in rank order.
    pub(crate) fn all(&self, word: &str) -> Vec<&Message> {
        let mut all: Vec<&Message> = self.messages.iter().filter(|s| s.word == word).collect();
        all.sort_by_key(|s| s.rank);
        all
    }

    /// Asserts that the job succeeded and every rank printed `word`.
    pub(crate) fn assert_success(&self, word: &str, ranks: u32) {
        let all = self.all(word);
        assert!(
            self.code == 0 && all.len() as u32 == ranks,
            "{}: {:?}\n{}",
            self.code,
            self.messages,
            self.stderr
        );
    }
}

impl Job {
    /// Starts one rank on each node, in a role and with these environment variables.
    pub(crate) fn start(wiring: &Wiring, link: &str, role: &str, env: &[(&str, &str)]) -> Job {
        Job::start_with(wiring, link, role, env, |_| ())
    }

    /// Like `start`, but calls `prepare` with the folder `home` first. Variables refer to it as
    /// `$HOME_OF_TEST`.
    pub(crate) fn start_with(
        wiring: &Wiring,
        link: &str,
        role: &str,
        env: &[(&str, &str)],
        prepare: impl FnOnce(&Path),
    ) -> Job {
        Job::start_several((wiring, 1), link, role, env, prepare)
    }

    /// Like `start_with`, but starts `per_node` ranks on each node.
    pub(crate) fn start_several(
        (wiring, per_node): (&Wiring, u32),
        link: &str,
        role: &str,
        env: &[(&str, &str)],
        prepare: impl FnOnce(&Path),
    ) -> Job {
        let home = tempfile::tempdir().expect("a temporary folder");
        let fabric = home.path().join("fabric.toml");
        std::fs::write(&fabric, wiring.text(link)).expect("our folder");
        prepare(home.path());
        let program = std::env::current_exe().expect("this program");
        let mut command = tbccl();
        command.args(["fabric", "run", "--timeout", "90", "--per-node", &per_node.to_string()]);
        // Without a failure the option makes no difference.
        command.args((role.starts_with("ladder")).then_some("--keep-going"));
        command.arg("--fabric").arg(&fabric).args(["--", "env"]);
        // The last values win, so they override those of the launcher.
        let role = ("ROLE", role);
        for (name, value) in [("TBCCL_TRANSPORT", "verbs"), role].iter().chain(env) {
            let value = value.replace("$HOME_OF_TEST", &home.path().to_string_lossy());
            command.arg(format!("{name}={value}"));
        }
        command.arg(program).args(["--exact", "roles::play", "--nocapture", "--test-threads=1"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().expect("it starts");
        let (send, lines) = mpsc::channel();
        let mut stdout = BufReader::new(process.stdout.take().expect("a pipe"));
        thread::spawn(move || {
            let mut line = String::new();
            while stdout.read_line(&mut line).is_ok_and(|n| n > 0) {
                if let Some(message) = Message::parse(&line) {
                    let _ = send.send(message);
                }
                line.clear();
            }
        });
        let mut stderr = process.stderr.take().expect("a pipe");
        let stderr = thread::spawn(move || {
            let mut text = Vec::new();
            let _ = stderr.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        });
        let folder = folder_of(process.id());
        Job { process, home, folder, lines, earlier: Vec::new(), stderr: Some(stderr) }
    }

    /// Runs a job until it ends.
    pub(crate) fn run(wiring: &Wiring, link: &str, role: &str, env: &[(&str, &str)]) -> Finished {
        Job::start(wiring, link, role, env).finish()
    }

    /// Returns the next message.
    pub(crate) fn next(&mut self) -> Message {
        match self.lines.recv_timeout(TIMEOUT) {
            Ok(message) => message,
            Err(_) => {
                let _ = self.process.kill();
                panic!(
                    "no rank expected_text anything: {}",
                    self.stderr.take().expect("once").join().expect("no panic")
                )
            }
        }
    }

    /// Waits until every one of `ranks` ranks has printed `word`; returns the rest of their messages by rank.
    pub(crate) fn wait_for(&mut self, word: &str, ranks: u32) -> Vec<String> {
        let mut rest = vec![None; ranks as usize];
        while rest.iter().any(Option::is_none) {
            let message = self.next();
            assert_ne!(message.word, "error", "{message:?}");
            if message.word == word {
                rest[message.rank as usize] = Some(message.rest);
            } else {
                self.earlier.push(message);
            }
        }
        rest.into_iter().flatten().collect()
    }

    fn fabric(&self, args: &[&str]) -> Output {
        let mut command = tbccl();
        command.args(["fabric", args[0], "--dir"]).arg(&self.folder).args(&args[1..]);
        let output = command.output().expect("it starts");
        if !output.status.success() {
            // The job has probably ended; the last messages of its ranks tell why.
            let last = std::iter::from_fn(|| self.lines.recv_timeout(Duration::from_secs(1)).ok());
            let last: Vec<Message> = last.take(64).collect();
            panic!("{args:?}: {}; the ranks message {last:?}", String::from_utf8_lossy(&output.stderr));
        }
        output
    }

    /// Injects a fault or clears it, with `tbccl fabric fault`.
    pub(crate) fn fault(&self, args: &[&str]) {
        let mut all = vec!["fault"];
        all.extend(args);
        self.fabric(&all);
    }

    /// Returns the bytes that each cable has carried, in both directions together.
    pub(crate) fn bytes_per_cable(&self) -> Vec<u64> {
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
    pub(crate) fn finish(mut self) -> Finished {
        use std::os::unix::process::ExitStatusExt;
        let until = Instant::now() + TIMEOUT;
        let status = loop {
            if let Some(status) = self.process.try_wait().expect("our child") {
                break status;
            }
            if Instant::now() > until {
                let _ = self.process.kill();
                let messages: Vec<Message> = self.lines.try_iter().collect();
                let stderr = self.stderr.take().expect("once").join().expect("no panic");
                panic!(
                    "the job does not end: {messages:?}
{stderr}"
                );
            }
            thread::sleep(Duration::from_millis(2));
        };
        assert!(!self.folder.exists(), "{} is left", self.folder.display());
        let stderr = self.stderr.take().expect("once").join().expect("no panic");
        let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default());
        self.earlier.extend(self.lines.iter());
        Finished { code, messages: std::mem::take(&mut self.earlier), stderr }
    }
}

impl Drop for Job {
    /// When a test fails, ends the launcher, which ends its ranks.
    fn drop(&mut self) {
        if self.process.try_wait().is_ok_and(|status| status.is_some()) {
            return;
        }
        let _ = rustix::process::kill_process(
            rustix::process::Pid::from_child(&self.process),
            rustix::process::Signal::TERM,
        );
        let _ = self.process.wait();
    }
}

/// Returns the fabric folder of a `tbccl fabric run` process.
fn folder_of(run: u32) -> PathBuf {
    let user = rustix::process::getuid().as_raw();
    let memory = Path::new("/dev/shm");
    let base = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    base.join(format!("tbccl-fabric-{user}-{run}"))
}
