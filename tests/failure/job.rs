//! A job whose ranks are this program, and what they say.

use std::{
    io::{BufRead, BufReader, Read},
    process::{Child, Command, Stdio},
    sync::{
        atomic::{AtomicU32, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant, SystemTime},
};

/// Longer than anything here takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(40);

/// Ranks that share memory, ranks that use it as if they did not, and ranks that have none in common.
pub(crate) const TRANSPORTS: [&str; 3] = ["shm", "rehearsal", "tcp"];

/// By which everything that a job leaves behind is found.
const MARK: &str = "MARK_OF_A_TEST";

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
    /// Harness output may precede what a rank says, on the same line.
    fn parse(line: &str) -> Option<Said> {
        let mut parts = line[line.find('@')? + 1..].trim_end().splitn(3, ' ');
        let word = parts.next()?.to_owned();
        let rank = parts.next()?.parse().ok()?;
        Some(Said { word, rank, rest: parts.next().unwrap_or_default().to_owned() })
    }
}

/// The arguments with which this program plays a role.
pub(crate) fn as_rank() -> Vec<String> {
    let program = std::env::current_exe().expect("this program").to_string_lossy().into_owned();
    [&program, "--exact", "roles::play", "--nocapture", "--test-threads=1"].map(str::to_owned).into()
}

/// A running job.
pub(crate) struct Job {
    process: Child,
    mark: String,
    temporary: tempfile::TempDir,
    lines: mpsc::Receiver<Said>,
    stderr: Option<thread::JoinHandle<String>>,
}

/// One that has ended, and left nothing behind.
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
}

impl Job {
    /// `ranks` ranks in a role, with these variables.
    pub(crate) fn start(ranks: u32, role: &str, env: &[(&str, &str)]) -> Job {
        Job::under(&[], ranks, role, env)
    }

    /// As `start`, each rank run by a command that precedes it.
    pub(crate) fn under(wrapper: &[&str], ranks: u32, role: &str, env: &[(&str, &str)]) -> Job {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tbccl"));
        command.args(["run", "-n", &ranks.to_string(), "--"]).args(wrapper).args(as_rank());
        command.env("ROLE", role).envs(env.iter().copied());
        Job::spawn(command)
    }

    /// Any process that is to be watched.
    pub(crate) fn spawn(mut command: Command) -> Job {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let mark = format!("{}.{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let temporary = tempfile::tempdir().expect("a temporary folder");
        command.env(MARK, &mark).env("TMPDIR", temporary.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
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
        Job { process, mark, temporary, lines, stderr: Some(stderr) }
    }

    /// The next line.
    pub(crate) fn next(&self) -> Said {
        self.lines.recv_timeout(PATIENCE).expect("a rank says something")
    }

    /// Waits for the end, and checks that nothing is left: no process and no file.
    pub(crate) fn finish(self) -> Finished {
        self.finish_within(PATIENCE)
    }

    /// As above, of a job that does much.
    pub(crate) fn finish_within(mut self, limit: Duration) -> Finished {
        use std::os::unix::process::ExitStatusExt;
        let until = Instant::now() + limit;
        let status = loop {
            if let Some(status) = self.process.try_wait().expect("our child") {
                break status;
            }
            assert!(Instant::now() < until, "it does not end");
            thread::sleep(Duration::from_millis(2));
        };
        assert_eq!(alive(&self.mark), Vec::<String>::new(), "processes are left");
        let left = std::fs::read_dir(self.temporary.path()).expect("our folder").count();
        assert_eq!(left, 0, "files are left in the temporary folder");
        let shared = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
        // Folders of software fabrics are those of other tests of this program, which run meanwhile.
        let is_ours = |name: &str| name.contains("tbccl") && !name.starts_with("tbccl-fabric-");
        let shared: Vec<_> =
            shared.map(|f| f.file_name()).filter(|f| is_ours(&f.to_string_lossy())).collect();
        assert!(shared.is_empty(), "files are left in /dev/shm: {shared:?}");
        let stderr = self.stderr.take().expect("once").join().expect("no panic");
        let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default());
        Finished { code, said: self.lines.iter().collect(), stderr }
    }
}

impl Drop for Job {
    /// For tests that fail.
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn alive(mark: &str) -> Vec<String> {
    let mark = format!("{MARK}={mark}");
    let carries = |environ: Vec<u8>| environ.split(|byte| *byte == 0).any(|var| var == mark.as_bytes());
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter(|entry| std::fs::read(entry.path().join("environ")).is_ok_and(carries))
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}
