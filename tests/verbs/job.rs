//! A job whose ranks are this program on the nodes of a fabric, and what they say.

use crate::{software_device::tbccl, wiring::Wiring};
use std::{
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, Output, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant, SystemTime},
};

/// Longer than anything here takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(100);

/// Milliseconds since the epoch: a clock that processes share.
pub(crate) fn now() -> u128 {
    SystemTime::UNIX_EPOCH.elapsed().expect("after 1970").as_millis()
}

/// One line that a rank said: `@word rank rest`.
#[derive(Clone, Debug)]
pub(crate) struct Said {
    pub(crate) word: String,
    pub(crate) rank: u32,
    pub(crate) rest: String,
}

impl Said {
    fn parse(line: &str) -> Option<Said> {
        let mut parts = line[line.find('@')? + 1..].trim_end().splitn(3, ' ');
        let word = parts.next()?.to_owned();
        let rank = parts.next()?.parse().ok()?;
        Some(Said { word, rank, rest: parts.next().unwrap_or_default().to_owned() })
    }
}

/// A running job.
pub(crate) struct Job {
    process: Child,
    /// Where the fabric file is, and room for what a test wants to keep beside it.
    pub(crate) home: tempfile::TempDir,
    /// Where the fabric lives.
    folder: PathBuf,
    lines: mpsc::Receiver<Said>,
    /// What was said while something else was waited for.
    earlier: Vec<Said>,
    stderr: Option<thread::JoinHandle<String>>,
}

/// One that has ended, and left nothing behind.
#[derive(Debug)]
pub(crate) struct Finished {
    /// Its exit status; 128 + the signal that killed it.
    pub(crate) code: i32,
    pub(crate) said: Vec<Said>,
    pub(crate) stderr: String,
}

impl Finished {
    /// What the ranks said under this word, in rank order.
    pub(crate) fn all(&self, word: &str) -> Vec<&Said> {
        let mut all: Vec<&Said> = self.said.iter().filter(|s| s.word == word).collect();
        all.sort_by_key(|s| s.rank);
        all
    }

    /// All went well, and every rank said `word`.
    pub(crate) fn is_right(&self, word: &str, ranks: u32) {
        let all = self.all(word);
        assert!(
            self.code == 0 && all.len() as u32 == ranks,
            "{}: {:?}\n{}",
            self.code,
            self.said,
            self.stderr
        );
    }
}

impl Job {
    /// Ranks in a role, one per node, with these variables.
    pub(crate) fn start(wiring: &Wiring, link: &str, role: &str, env: &[(&str, &str)]) -> Job {
        Job::start_with(wiring, link, role, env, |_| ())
    }

    /// As `start`, after `prepare` has seen the folder `home`, which variables find as `$HOME_OF_TEST`.
    pub(crate) fn start_with(
        wiring: &Wiring,
        link: &str,
        role: &str,
        env: &[(&str, &str)],
        prepare: impl FnOnce(&Path),
    ) -> Job {
        Job::start_several((wiring, 1), link, role, env, prepare)
    }

    /// As `start_with`, with so many ranks on each node.
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
        // Where no rank fails there is no difference.
        command.args((role.starts_with("ladder")).then_some("--keep-going"));
        command.arg("--fabric").arg(&fabric).args(["--", "env"]);
        // Said last, so that they hold against what the launcher sets.
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
                if let Some(said) = Said::parse(&line) {
                    let _ = send.send(said);
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

    /// Runs a job to its end.
    pub(crate) fn run(wiring: &Wiring, link: &str, role: &str, env: &[(&str, &str)]) -> Finished {
        Job::start(wiring, link, role, env).finish()
    }

    /// The next line.
    pub(crate) fn next(&mut self) -> Said {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(said) => said,
            Err(_) => {
                let _ = self.process.kill();
                panic!(
                    "no rank says anything: {}",
                    self.stderr.take().expect("once").join().expect("no panic")
                )
            }
        }
    }

    /// Waits until every one of `ranks` ranks has said this word; what they said with it, by rank.
    pub(crate) fn wait_for(&mut self, word: &str, ranks: u32) -> Vec<String> {
        let mut rest = vec![None; ranks as usize];
        while rest.iter().any(Option::is_none) {
            let said = self.next();
            assert_ne!(said.word, "error", "{said:?}");
            if said.word == word {
                rest[said.rank as usize] = Some(said.rest);
            } else {
                self.earlier.push(said);
            }
        }
        rest.into_iter().flatten().collect()
    }

    fn fabric(&self, args: &[&str]) -> Output {
        let mut command = tbccl();
        command.args(["fabric", args[0], "--dir"]).arg(&self.folder).args(&args[1..]);
        let output = command.output().expect("it starts");
        if !output.status.success() {
            // Mostly the job has ended: what its ranks said last tells why.
            let last = std::iter::from_fn(|| self.lines.recv_timeout(Duration::from_secs(1)).ok());
            let last: Vec<Said> = last.take(64).collect();
            panic!("{args:?}: {}; the ranks said {last:?}", String::from_utf8_lossy(&output.stderr));
        }
        output
    }

    /// Breaks something, or mends it: `tbccl fabric fault`.
    pub(crate) fn fault(&self, args: &[&str]) {
        let mut all = vec!["fault"];
        all.extend(args);
        self.fabric(&all);
    }

    /// Bytes that each cable has carried, both ways together.
    pub(crate) fn carried(&self) -> Vec<u64> {
        let text = self.fabric(&["stat", "--json"]).stdout;
        let stat: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
        let cables = stat["cables"].as_array().unwrap_or_else(|| panic!("cables in {stat}"));
        let sum = |cable: &serde_json::Value| {
            let ways = cable["lanes"].as_array().unwrap_or_else(|| panic!("lanes in {cable}"));
            ways.iter().map(|way| way["bytes"].as_u64().expect("a number")).sum()
        };
        cables.iter().map(sum).collect()
    }

    /// Waits for the end, and checks that nothing is left of the fabric.
    pub(crate) fn finish(mut self) -> Finished {
        use std::os::unix::process::ExitStatusExt;
        let until = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.process.try_wait().expect("our child") {
                break status;
            }
            if Instant::now() > until {
                let _ = self.process.kill();
                let said: Vec<Said> = self.lines.try_iter().collect();
                let stderr = self.stderr.take().expect("once").join().expect("no panic");
                panic!("it does not end: {said:?}\n{stderr}");
            }
            thread::sleep(Duration::from_millis(2));
        };
        assert!(!self.folder.exists(), "{} is left", self.folder.display());
        let stderr = self.stderr.take().expect("once").join().expect("no panic");
        let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default());
        self.earlier.extend(self.lines.iter());
        Finished { code, said: std::mem::take(&mut self.earlier), stderr }
    }
}

impl Drop for Job {
    /// For tests that fail: the launcher ends its ranks.
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

/// The folder of the fabric that a process runs.
fn folder_of(run: u32) -> PathBuf {
    let user = rustix::process::getuid().as_raw();
    let memory = Path::new("/dev/shm");
    let base = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    base.join(format!("tbccl-fabric-{user}-{run}"))
}
