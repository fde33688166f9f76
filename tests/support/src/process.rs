//! A process under test, with a mark by which everything that it leaves behind is found.
//!
//! # Safety
//! The only unsafe operation runs between fork and exec: it calls `signal`, which is async-signal-safe, and
//! nothing else.

use crate::{
    TIMEOUT,
    message::{Message, messages_of},
};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    cell::RefCell,
    io::{BufRead, BufReader, Read},
    os::unix::process::{CommandExt, ExitStatusExt},
    process::{Child, ChildStdin, Command, ExitStatus, Stdio},
    sync::{
        atomic::{AtomicU32, Ordering::Relaxed},
        mpsc::{self, Receiver},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// Signals that a shell may have set to ignored for background processes, and that launchers forward.
const SIGNALS: [i32; 5] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGUSR1, libc::SIGUSR2];

/// Gives the process of a command default signal handlers, even for signals that this process ignores.
pub fn with_default_signals(command: &mut Command) {
    let reset = || {
        for signal in SIGNALS {
            // SAFETY: `signal` is async-signal-safe, and the default handler is valid for each of these
            // signals.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        Ok(())
    };
    // SAFETY: between fork and exec only async-signal-safe functions are called.
    unsafe { command.pre_exec(reset) };
}

/// Polls until a condition holds.
///
/// # Panics
/// If it does not hold within [`TIMEOUT`].
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < TIMEOUT, "this did not happen within {TIMEOUT:?}: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the process ids of the children of a process that have not ended. On systems without `/proc` none
/// can be seen.
#[must_use]
pub fn children_of(parent: u32) -> Vec<u32> {
    let ids = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = ids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_child = |id: &u32| {
        let stat = std::fs::read(format!("/proc/{id}/stat")).unwrap_or_default();
        let stat = String::from_utf8_lossy(&stat);
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
        fields.len() > 1 && fields[0] != "Z" && fields[1] == parent.to_string()
    };
    ids.filter(is_child).collect()
}

/// A value in the environment of a process and its descendants that no other process has.
#[derive(Clone, Debug)]
pub struct Mark(String);

impl Default for Mark {
    fn default() -> Mark {
        Mark::new()
    }
}

impl Mark {
    /// The environment variable.
    pub const NAME: &str = "TBCCL_TEST_MARK_OF_PROCESSES";

    /// Returns a mark that no other process has.
    #[must_use]
    pub fn new() -> Mark {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        Mark(format!("{}.{}", std::process::id(), NEXT.fetch_add(1, Relaxed)))
    }

    /// Returns the value of the environment variable [`Mark::NAME`].
    #[must_use]
    pub fn value(&self) -> &str {
        &self.0
    }

    /// Returns the process ids of live processes with this mark. On systems without `/proc` none can be seen.
    #[must_use]
    pub fn processes(&self) -> Vec<String> {
        let mark = format!("{}={}", Mark::NAME, self.0);
        let carries = |environ: Vec<u8>| environ.split(|byte| *byte == 0).any(|var| var == mark.as_bytes());
        let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        processes
            .filter(|entry| std::fs::read(entry.path().join("environ")).is_ok_and(carries))
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect()
    }
}

/// A running process, which is killed at the latest when its test ends.
#[derive(Debug)]
pub struct Process {
    child: Child,
    mark: Mark,
    started: Instant,
    temporary: tempfile::TempDir,
    /// Lines of stdout with their ends.
    lines: Receiver<Vec<u8>>,
    /// Lines that were skipped while another one was awaited.
    earlier: Vec<Vec<u8>>,
    stderr: RefCell<Option<JoinHandle<String>>>,
}

/// A process that has ended and left nothing behind.
#[derive(Debug)]
pub struct Finished {
    /// Its exit status.
    pub status: ExitStatus,
    /// The output that no test has read before the end.
    pub stdout: Vec<u8>,
    /// The messages in `stdout`.
    pub messages: Vec<Message>,
    /// All that it printed on stderr.
    pub stderr: String,
    /// Time from start to end.
    pub took: Duration,
}

impl Finished {
    /// Returns the exit status, or 128 + the signal that killed the process.
    #[must_use]
    pub fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| 128 + self.status.signal().unwrap_or_default())
    }

    /// Returns the messages with this word, in rank order.
    #[must_use]
    pub fn all(&self, word: &str) -> Vec<&Message> {
        messages_of(&self.messages, word)
    }

    /// Returns the lines of stdout, sorted.
    ///
    /// # Panics
    /// If stdout is not UTF-8.
    #[must_use]
    pub fn sorted_lines(&self) -> Vec<String> {
        let text = String::from_utf8(self.stdout.clone()).expect("text");
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    }

    /// Asserts that the process succeeded and every one of `ranks` ranks printed a message with this word.
    ///
    /// # Panics
    /// If not; shows what was printed instead.
    pub fn assert_success(&self, word: &str, ranks: u32) {
        let is_success = self.code() == 0 && self.all(word).len() as u32 == ranks;
        assert!(is_success, "exit status {}: {:?}\n{}", self.code(), self.messages, self.stderr);
    }
}

impl Process {
    /// Starts a command with default signal handlers, a mark, a temporary folder of its own, and its output
    /// piped here.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn start(mut command: Command) -> Process {
        let (mark, temporary) = (Mark::new(), tempfile::tempdir().expect("a temporary folder"));
        command.env(Mark::NAME, &mark.0).env("TMPDIR", temporary.path());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        with_default_signals(&mut command);
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
        let (send, lines) = mpsc::channel();
        let mut stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        thread::spawn(move || {
            let mut line = Vec::new();
            while stdout.read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0) {
                let _ = send.send(std::mem::take(&mut line));
            }
        });
        let mut stderr = child.stderr.take().expect("a pipe");
        let stderr = thread::spawn(move || {
            let mut text = Vec::new();
            let _ = stderr.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        });
        let (started, earlier, stderr) = (Instant::now(), Vec::new(), RefCell::new(Some(stderr)));
        Process { child, mark, started, temporary, lines, earlier, stderr }
    }

    /// Returns the process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the pipe to its stdin, if the command had one.
    pub fn stdin(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    /// Returns the mark of the process and its descendants.
    #[must_use]
    pub fn mark(&self) -> &Mark {
        &self.mark
    }

    /// Returns whether the process has ended.
    ///
    /// # Panics
    /// If its status cannot be read.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("a child of this process").is_some()
    }

    /// Sends a signal.
    ///
    /// # Panics
    /// If the process has ended.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("the process runs");
    }

    /// Returns the next line of stdout, with its end.
    ///
    /// # Panics
    /// If there is none within [`TIMEOUT`]; shows stderr.
    pub fn next_line(&self) -> Vec<u8> {
        match self.lines.recv_timeout(TIMEOUT) {
            Ok(line) => line,
            Err(error) => panic!("no line of output: {error}; {}", self.end_and_read_stderr()),
        }
    }

    /// Returns the rest of the next line that contains `begin`, from there on; earlier lines are dropped.
    ///
    /// # Panics
    /// As for [`Process::next_line`].
    pub fn next_after(&self, begin: &str) -> String {
        loop {
            let line = String::from_utf8_lossy(&self.next_line()).into_owned();
            if let Some(at) = line.find(begin) {
                return line[at + begin.len()..].trim().to_owned();
            }
        }
    }

    /// Returns the next message; other lines are dropped.
    ///
    /// # Panics
    /// As for [`Process::next_line`].
    pub fn next_message(&self) -> Message {
        loop {
            if let Some(message) = Message::parse(&String::from_utf8_lossy(&self.next_line())) {
                return message;
            }
        }
    }

    /// Waits until each of `ranks` ranks has printed a message with this word, and returns the rest of them
    /// by rank. Other lines are kept for [`Process::finish`].
    ///
    /// # Panics
    /// As for [`Process::next_line`], and on a message `@error`.
    pub fn wait_for(&mut self, word: &str, ranks: u32) -> Vec<String> {
        let mut rest = vec![None; ranks as usize];
        while rest.iter().any(Option::is_none) {
            let line = self.next_line();
            match Message::parse(&String::from_utf8_lossy(&line)) {
                Some(message) if message.word == word => rest[message.rank as usize] = Some(message.rest),
                message => {
                    assert!(message.is_none_or(|message| message.word != "error"), "{line:?}");
                    self.earlier.push(line);
                }
            }
        }
        rest.into_iter().flatten().collect()
    }

    /// Waits until `ranks` lines that say `ready` have been printed, and nothing else.
    ///
    /// # Panics
    /// As for [`Process::next_line`], and on another line.
    pub fn until_ready(&self, ranks: usize) {
        for _ in 0..ranks {
            assert_eq!(String::from_utf8_lossy(&self.next_line()), "ready\n");
        }
    }

    /// Returns the messages that arrive within a second, for the report of a failure.
    pub fn last_messages(&self) -> Vec<Message> {
        let lines = std::iter::from_fn(|| self.lines.recv_timeout(Duration::from_secs(1)).ok());
        lines.take(64).filter_map(|line| Message::parse(&String::from_utf8_lossy(&line))).collect()
    }

    fn end_and_read_stderr(&self) -> String {
        let _ = kill_process(Pid::from_child(&self.child), Signal::KILL);
        self.stderr.take().map(|thread| thread.join().expect("no panic")).unwrap_or_default()
    }

    /// Waits for the end.
    ///
    /// # Panics
    /// If it does not end within [`TIMEOUT`]; shows stderr.
    pub fn wait(&mut self) -> ExitStatus {
        self.wait_at_most(TIMEOUT)
    }

    fn wait_at_most(&mut self, limit: Duration) -> ExitStatus {
        let until = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait().expect("a child of this process") {
                return status;
            }
            if Instant::now() > until {
                let messages = self.last_messages();
                panic!("no end within {limit:?}: {messages:?}\n{}", self.end_and_read_stderr());
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits for the end, and asserts that nothing is left: no process, no file in its temporary folder or in
    /// /dev/shm.
    ///
    /// # Panics
    /// If something is left, or it does not end within [`TIMEOUT`].
    #[must_use]
    pub fn finish(self) -> Finished {
        self.finish_within(TIMEOUT)
    }

    /// As [`Process::finish`], with another time limit.
    ///
    /// # Panics
    /// As for [`Process::finish`].
    #[must_use]
    pub fn finish_within(mut self, limit: Duration) -> Finished {
        let status = self.wait_at_most(limit);
        let took = self.started.elapsed();
        assert_eq!(self.mark.processes(), Vec::<String>::new(), "processes are left");
        let left = std::fs::read_dir(self.temporary.path()).expect("a folder of this test").count();
        assert_eq!(left, 0, "files are left in the temporary folder");
        let shared = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
        // Folders of software fabrics belong to other tests, which run meanwhile.
        let is_left = |name: &str| name.contains("tbccl") && !name.starts_with("tbccl-fabric-");
        let shared: Vec<_> =
            shared.map(|file| file.file_name()).filter(|name| is_left(&name.to_string_lossy())).collect();
        assert!(shared.is_empty(), "files are left in /dev/shm: {shared:?}");
        let stderr = self.stderr.take().expect("not read before").join().expect("no panic");
        let mut lines = std::mem::take(&mut self.earlier);
        lines.extend(self.lines.iter());
        let parse = |line: &Vec<u8>| Message::parse(&String::from_utf8_lossy(line));
        let messages = lines.iter().filter_map(parse).collect();
        Finished { status, messages, stdout: lines.concat(), stderr, took }
    }
}

impl Drop for Process {
    /// Ends the process of a test that fails: a launcher first gets the chance to end its ranks.
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|status| status.is_some()) {
            return;
        }
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let until = Instant::now() + Duration::from_secs(5);
        while self.child.try_wait().is_ok_and(|status| status.is_none()) && Instant::now() < until {
            thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
