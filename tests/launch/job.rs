//! A launcher under test.
//!
//! Every job carries a mark in its environment, by which what it leaves behind is found, and has a folder for
//! temporary files, in which it may leave nothing.

use rustix::process::{Pid, Signal, kill_process};
use std::{
    io::{BufRead, BufReader, Read},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        atomic::{AtomicU32, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

/// Longer than anything here takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
pub(crate) const TBCCL: &str = env!("CARGO_BIN_EXE_tbccl");

/// Polls until it holds.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "waited in vain: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// A mark that no other job has.
pub(crate) fn mark() -> (String, String) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let value = format!("{}.{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    ("LAUNCH_TEST_MARK".to_owned(), value)
}

/// The processes alive that carry the mark. (Elsewhere than on Linux: none can be seen.)
pub(crate) fn alive((key, value): &(String, String)) -> Vec<String> {
    let Ok(processes) = std::fs::read_dir("/proc") else { return Vec::new() };
    let mark = format!("{key}={value}");
    let carries = |environ: Vec<u8>| environ.split(|byte| *byte == 0).any(|var| var == mark.as_bytes());
    processes
        .flatten()
        .filter(|entry| std::fs::read(entry.path().join("environ")).is_ok_and(carries))
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

/// A running launcher.
pub(crate) struct Job {
    pub(crate) launcher: Child,
    pub(crate) mark: (String, String),
    started: Instant,
    temporary: tempfile::TempDir,
    /// Lines of stdout with their ends, as they come.
    lines: mpsc::Receiver<Vec<u8>>,
    stderr: Option<thread::JoinHandle<String>>,
}

/// One that has ended, and left nothing behind.
pub(crate) struct Finished {
    status: ExitStatus,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
    pub(crate) took: Duration,
}

impl Finished {
    pub(crate) fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| panic!("the launcher was killed: {:?}", self.status))
    }

    /// The lines of stdout, sorted.
    pub(crate) fn lines(&self) -> Vec<String> {
        let text = String::from_utf8(self.stdout.clone()).expect("text");
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    }
}

impl Job {
    /// `tbccl run` with these arguments.
    pub(crate) fn run(args: &[&str]) -> Job {
        let mut command = Command::new(TBCCL);
        command.arg("run").args(args).stdin(Stdio::null());
        Job::start(command)
    }

    /// `ranks` shells with this script.
    pub(crate) fn shells(ranks: u32, options: &[&str], script: &str) -> Job {
        let ranks = ranks.to_string();
        Job::run(&[&["-n", &ranks], options, &["--", "/bin/sh", "-c", script]].concat())
    }

    /// Any command that ends up as the launcher.
    pub(crate) fn start(mut command: Command) -> Job {
        let mark = mark();
        let temporary = tempfile::tempdir().expect("a temporary folder");
        command.env(&mark.0, &mark.1).env("TMPDIR", temporary.path());
        let mut launcher =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the launcher starts");
        let (send, lines) = mpsc::channel();
        let mut stdout = BufReader::new(launcher.stdout.take().expect("a pipe"));
        thread::spawn(move || {
            let mut line = Vec::new();
            while stdout.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
                let _ = send.send(std::mem::take(&mut line));
            }
        });
        let mut stderr = launcher.stderr.take().expect("a pipe");
        let stderr = thread::spawn(move || {
            let mut text = Vec::new();
            let _ = stderr.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        });
        Job { launcher, mark, started: Instant::now(), temporary, lines, stderr: Some(stderr) }
    }

    /// Waits for so many lines that say `ready`.
    pub(crate) fn until_ready(&self, ranks: usize) {
        for _ in 0..ranks {
            let line = self.lines.recv_timeout(PATIENCE).expect("a rank says that it is ready");
            assert_eq!(String::from_utf8_lossy(&line), "ready\n");
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.launcher), signal).expect("the launcher runs");
    }

    /// Waits for the end.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        eventually("the end of the launcher", || {
            status = self.launcher.try_wait().expect("our child");
            status.is_some()
        });
        status.expect("just seen")
    }

    /// Waits for the end, and checks that nothing is left.
    pub(crate) fn finish(mut self) -> Finished {
        let status = self.wait();
        let took = self.started.elapsed();
        assert_eq!(alive(&self.mark), Vec::<String>::new(), "processes are left");
        let left = std::fs::read_dir(self.temporary.path()).expect("our folder").count();
        assert_eq!(left, 0, "files are left");
        let stderr = self.stderr.take().expect("once").join().expect("no panic");
        let stdout = self.lines.iter().flatten().collect();
        Finished { status, stdout, stderr, took }
    }
}

impl Drop for Job {
    /// For tests that fail.
    fn drop(&mut self) {
        let _ = self.launcher.kill();
        let _ = self.launcher.wait();
    }
}
