//! The processes of a round: launcher or rendezvous, ranks, and processes that join later.

use super::{CommandError, fabric, leftovers::MARK, system};
use crate::{
    commands::chaos::{
        account::Account,
        plan::{Round, Wishes},
        settings::Start,
    },
    launch::in_own_group,
};
use rustix::process::Signal;
use std::{
    fs::{self, File},
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// Variables of other jobs.
const FOREIGN: [&str; 7] = [
    "LD_PRELOAD",
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
    "RANK",
    "SLURM_PROCID",
    "SSH_CONNECTION",
    "WORLD_SIZE",
];

/// Command that takes the place of ssh: runs the command line here, in a shell.
const SSH: &str = r#"sh -c 'exec sh -c "$1"'"#;

/// Time that a launcher or rendezvous has to end after its ranks.
const ENDING_TIME: Duration = Duration::from_secs(12);

/// Bytes of each output file that a report of a violation shows.
const SHOWN: usize = 3000;

/// The processes of a round that this process has started.
#[derive(Debug)]
pub(super) struct Job {
    /// `tbccl run` or `tbccl rendezvous`.
    pub(super) server: Option<Child>,
    /// Ranks and processes that join later, if no launcher has started them.
    children: Vec<(u32, Child)>,
}

impl Job {
    /// Starts the processes of a round.
    pub(super) fn start(round: &Round, wishes: &Wishes, folder: &Path) -> Result<Job, CommandError> {
        fabric::prepare(round, folder)?;
        let starter = Starter { round, wishes, folder };
        let mut job = Job { server: None, children: Vec::new() };
        let world = 0..round.ranks;
        match round.start {
            Start::Run | Start::Hosts => job.server = Some(starter.launcher()?),
            Start::Rendezvous => {
                let (server, address) = starter.rendezvous()?;
                job.server = Some(server);
                for number in world {
                    let identity = [
                        ("TBCCL_BOOTSTRAP", address.clone()),
                        ("TBCCL_SECRET_FILE", folder.join("secret").to_string_lossy().into_owned()),
                        ("TBCCL_RANK", number.to_string()),
                        ("TBCCL_SIZE", round.ranks.to_string()),
                    ];
                    job.children.push((number, starter.process(number, &identity)?));
                }
            }
            Start::Id => {
                for number in world {
                    job.children.push((number, starter.process(number, &[])?));
                }
            }
        }
        for number in round.ranks..round.processes() {
            job.children.push((number, starter.process(number, &[])?));
        }
        Ok(job)
    }

    /// Whether a process that has not reported will never start.
    pub(super) fn is_without_starter(&self, number: u32, round: &Round) -> bool {
        let pid = match self.children.iter().find(|(known, _)| *known == number) {
            Some((_, child)) => child.id(),
            None => match &self.server {
                Some(server) if round.start.has_launcher() => server.id(),
                _ => return true,
            },
        };
        !system::is_alive(pid)
    }

    /// Makes processes that hang write their latest calls, and notes the places where they wait.
    pub(super) fn record_stuck(&self, accounts: &[Account], folder: &Path) {
        let mut text = String::new();
        for pid in accounts.iter().filter_map(|account| account.pid).filter(|pid| system::is_alive(*pid)) {
            system::signal(pid, Signal::USR2);
            for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
                let read = |name: &str| fs::read_to_string(task.path().join(name)).unwrap_or_default();
                let (name, place, call) = (read("comm"), read("wchan"), read("syscall"));
                text += &format!("{pid} {} {place} {}\n", name.trim(), call.trim());
            }
        }
        std::thread::sleep(Duration::from_millis(300));
        let _ = fs::write(folder.join("out.stuck"), text);
    }

    /// Waits for the launcher or the rendezvous, and reaps all children. Returns a description of each that
    /// does not end as it should.
    pub(super) fn finish(&mut self, round: &Round, is_killed: bool) -> Vec<String> {
        let mut found = Vec::new();
        if let Some(server) = &mut self.server {
            let until = Instant::now() + ENDING_TIME;
            let status = loop {
                match server.try_wait() {
                    Ok(None) if Instant::now() < until => std::thread::sleep(Duration::from_millis(1)),
                    Ok(status) => break status,
                    Err(_) => break None,
                }
            };
            let has_failed = status.is_some_and(|status| round.start.has_launcher() && !status.success());
            match status {
                None => found.push(format!("`tbccl {}` runs on", round.start.name())),
                // With --keep-going a rank that succeeds is enough.
                Some(status) if has_failed && !is_killed => {
                    found.push(format!("`tbccl run` ended with {status}, though ranks succeeded"));
                }
                Some(_) => {}
            }
            let _ = server.kill();
            let _ = server.wait();
        }
        for (_, child) in &mut self.children {
            if system::is_alive(child.id()) {
                let _ = child.kill();
            }
            let _ = child.wait();
        }
        found
    }
}

/// Starts processes of a round.
struct Starter<'r> {
    round: &'r Round,
    wishes: &'r Wishes,
    folder: &'r Path,
}

impl Starter<'_> {
    /// Starts the launcher of all ranks.
    fn launcher(&self) -> Result<Child, CommandError> {
        let mut command = self.tbccl(&["run", "--keep-going", "--timeout", "300"])?;
        match self.round.start {
            Start::Hosts => {
                let hosts = (0..self.round.nodes).map(|node| format!("host{node}:{}", self.round.per_node));
                command.arg("--hosts").arg(hosts.collect::<Vec<_>>().join(",")).args(["--ssh", SSH]);
                command.env("SSH_CONNECTION", "127.0.0.1 1 127.0.0.1 2");
            }
            _ => {
                command.args(["-n", &self.round.ranks.to_string()]);
            }
        }
        command.arg("--").arg(this_program()?).args(self.worker_arguments());
        self.start(command, "run")
    }

    /// Starts a rendezvous; returns its address for ranks.
    fn rendezvous(&self) -> Result<(Child, String), CommandError> {
        let ranks = self.round.ranks.to_string();
        let mut command = self.tbccl(&["rendezvous", "--listen", "127.0.0.1:0", "-n", &ranks])?;
        command.arg("--secret-file").arg(self.folder.join("secret"));
        let mut server = self.start_piped(command, "rendezvous")?;
        let mut line = String::new();
        if let Some(stdout) = server.stdout.take() {
            let _ = BufReader::new(stdout).read_line(&mut line);
        }
        match line.trim().strip_prefix("TBCCL_BOOTSTRAP=") {
            Some(address) => Ok((server, address.to_owned())),
            None => Err(CommandError::new("the rendezvous of a round does not start")),
        }
    }

    /// Starts one process of the round.
    fn process(&self, number: u32, identity: &[(&str, String)]) -> Result<Child, CommandError> {
        let mut command = self.tbccl(&[])?;
        command.args(self.worker_arguments()).args(["--process", &number.to_string()]);
        command.envs(identity.iter().map(|(name, value)| (name, value)));
        self.start(command, &number.to_string())
    }

    /// Returns the arguments with which a process derives the same plan.
    fn worker_arguments(&self) -> Vec<String> {
        let Round { seed, number, setting, .. } = self.round;
        let seconds = self.wishes.timeout.as_secs_f64();
        let text = format!(
            "chaos --seed {seed} --round {number} --timeout {seconds} {}{}",
            setting.options(),
            self.wishes.fault_options()
        );
        let mut arguments: Vec<String> = text.split(' ').map(str::to_owned).collect();
        arguments.push("--worker".to_owned());
        arguments.push(self.folder.to_string_lossy().into_owned());
        arguments
    }

    /// Returns a command of this program with the environment of the round.
    fn tbccl(&self, arguments: &[&str]) -> Result<Command, CommandError> {
        let mut command = Command::new(this_program()?);
        command.args(arguments).stdin(Stdio::null());
        let is_ours = |name: &str| name.starts_with("TBCCL_") || name.starts_with("SOFTRDMA_");
        for (name, _) in std::env::vars_os() {
            // The library of the software device may be anywhere.
            if name.to_str().is_some_and(|name| is_ours(name) && name != "SOFTRDMA_LIB") {
                command.env_remove(name);
            }
        }
        FOREIGN.iter().for_each(|name| {
            command.env_remove(name);
        });
        // A round leaves nothing behind, and depends on nothing that an earlier one has left.
        command.env("TBCCL_CALIBRATE", "0");
        command.envs(self.round.options.iter().map(|(name, value)| (name, value)));
        command.env(MARK, self.folder).env("TMPDIR", self.folder.join("tmp"));
        command.env("TBCCL_DUMP", self.folder.join("dumps"));
        Ok(command)
    }

    fn start(&self, mut command: Command, name: &str) -> Result<Child, CommandError> {
        command.stdout(self.output(name)?);
        self.spawn(command, name)
    }

    fn start_piped(&self, mut command: Command, name: &str) -> Result<Child, CommandError> {
        command.stdout(Stdio::piped());
        self.spawn(command, name)
    }

    fn spawn(&self, mut command: Command, name: &str) -> Result<Child, CommandError> {
        command.stderr(self.output(name)?);
        in_own_group(command).map_err(|error| {
            CommandError::new(format_args!("a process of a round can't be started: {error}"))
        })
    }

    /// Returns the file with the output of a process.
    fn output(&self, name: &str) -> Result<File, CommandError> {
        let path = self.folder.join(format!("out.{name}"));
        let file = File::options().create(true).append(true).open(&path);
        file.map_err(|error| CommandError::new(format_args!("{}: {error}", path.display())))
    }
}

fn this_program() -> Result<std::path::PathBuf, CommandError> {
    std::env::current_exe()
        .map_err(|why| CommandError::new(format_args!("the path of this program can't be found: {why}")))
}

/// Returns the last output of the processes of a round.
pub(super) fn output(folder: &Path) -> String {
    let mut files: Vec<_> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("out."))
        .collect();
    files.sort_by_key(fs::DirEntry::file_name);
    let mut text = String::new();
    for file in files {
        let content = fs::read(file.path()).unwrap_or_default();
        let content = String::from_utf8_lossy(&content[content.len().saturating_sub(SHOWN)..]).into_owned();
        for line in content.lines() {
            text += &format!("{}: {line}\n", file.file_name().to_string_lossy());
        }
    }
    text
}
