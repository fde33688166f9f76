//! Processes of these tests, and what they say. Each is ended with its test at the latest.

use std::{
    io::{BufRead, BufReader, Read},
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// Longer than anything here takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(40);

/// Variables by which a rank would know itself, or its place, without ours.
const OTHERS: [&str; 8] = [
    "RANK",
    "WORLD_SIZE",
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
    "SLURM_PROCID",
    "TBCCL_RANK",
    "TBCCL_BOOTSTRAP",
    "TBCCL_SECRET",
];

/// A running process.
pub(crate) struct Process {
    child: Child,
    lines: mpsc::Receiver<String>,
    stderr: Option<JoinHandle<String>>,
}

/// How a process ended.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) code: Option<i32>,
    pub(crate) stderr: String,
    /// What it said that nobody has taken.
    pub(crate) said: Vec<String>,
}

impl Process {
    pub(crate) fn start(mut command: Command) -> Process {
        for name in OTHERS {
            if !command.get_envs().any(|(key, _)| key == name) {
                command.env_remove(name);
            }
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("a process");
        let (send, lines) = mpsc::channel();
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| send.send(line)));
        let mut stderr = child.stderr.take().expect("piped");
        let stderr = thread::spawn(move || {
            let mut text = String::new();
            let _ = stderr.read_to_string(&mut text);
            text
        });
        Process { child, lines, stderr: Some(stderr) }
    }

    /// This program as a rank that plays a role.
    pub(crate) fn rank(role: &str, env: &[(&str, &str)]) -> Process {
        Process::start(rank_command(role, env))
    }

    /// `tbccl` with these arguments.
    pub(crate) fn tbccl(args: &[&str]) -> Process {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tbccl"));
        command.args(args);
        Process::start(command)
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The rest of the next line that begins so.
    pub(crate) fn hear(&mut self, begin: &str) -> String {
        let until = Instant::now() + PATIENCE;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => {
                    if let Some(rest) = line.find(begin).map(|at| &line[at + begin.len()..]) {
                        return rest.trim().to_owned();
                    }
                }
                Err(e) => panic!("waited in vain for `{begin}`: {e}; {}", self.last_words()),
            }
        }
    }

    fn last_words(&mut self) -> String {
        let _ = self.child.kill();
        self.stderr.take().map(|thread| thread.join().expect("no panic")).unwrap_or_default()
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("it runs");
    }

    pub(crate) fn finish(mut self) -> Finished {
        let until = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("ours") {
                break status;
            }
            assert!(Instant::now() < until, "it does not end: {}", self.last_words());
            thread::sleep(Duration::from_millis(5));
        };
        let stderr = self.last_words();
        Finished { code: status.code(), stderr, said: self.lines.iter().collect() }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// This program as a rank that plays a role.
pub(crate) fn rank_command(role: &str, env: &[(&str, &str)]) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", "roles::play", "--nocapture", "--test-threads=1"]);
    command.env("ROLE", role).env("TBCCL_TIMEOUT", "30").envs(env.iter().copied());
    command
}

/// A secret for one test.
pub(crate) fn secret() -> String {
    bootstrap::Secret::generate().expect("random numbers").to_hex().to_string()
}

/// A port that nobody listens on now.
pub(crate) fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("bound").port()
}
