//! The ranks of one host: their files and variables, their processes and their pipes.

use super::{channel::Channel, files::Files};
use crate::launch::{
    LaunchError,
    frame::{FromAgent, Prepare, PrepareRank, Stream},
    machine,
    processes::JobMark,
    program,
    ranks::Ranks,
    spawn,
};
use rustix::{
    event::{PollFd, PollFlags},
    io::{Errno, read, write},
    process::Signal,
};
use std::{
    ffi::OsString,
    io::{self, IsTerminal},
    os::{fd::OwnedFd, unix::process::CommandExt},
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

/// Bytes per read: the capacity of a pipe.
const READ_SIZE: usize = 1 << 16;

/// A rank's stdout or stderr.
#[derive(Debug)]
struct Output {
    rank: u32,
    stream: Stream,
    pipe: OwnedFd,
}

/// A rank's stdin.
#[derive(Debug)]
struct Input {
    rank: u32,
    /// The pipe's write end; closed at the end of the input, or when the rank no longer reads.
    pipe: Option<OwnedFd>,
    /// Bytes that the rank has not read yet. Once they are written, the launcher gets `StdinTaken`.
    pending: Vec<u8>,
    /// Whether no more input follows `pending`.
    last: bool,
}

/// The launcher's job on this host.
#[derive(Debug)]
pub(super) struct Job {
    prepare: Prepare,
    program: PathBuf,
    /// The files that `variables` name; kept for their `Drop`.
    _files: Files,
    variables: Vec<(OsString, OsString)>,
    ranks: Ranks,
    outputs: Vec<Output>,
    inputs: Vec<Input>,
}

impl Job {
    /// Checks the program and the folder, and creates the files.
    pub(super) fn prepare(prepare: Prepare) -> Result<Job, String> {
        if let Some(cwd) = &prepare.cwd
            && !cwd.is_dir()
        {
            return Err(LaunchError::NoFolder(cwd.clone()).to_string());
        }
        let program = program::find(&prepare.program, &prepare.env, prepare.cwd.as_deref())
            .map_err(|e| e.to_string())?;
        let (files, variables) = Files::make(&prepare.files).map_err(|e| {
            format!("can't make files for the ranks: {e}; make room in memory and temporary folders")
        })?;
        Ok(Job {
            prepare,
            program,
            _files: files,
            variables,
            ranks: Ranks::default(),
            outputs: Vec::new(),
            inputs: Vec::new(),
        })
    }

    /// Returns a warning that does not prevent the job.
    pub(super) fn warning(&self) -> Option<String> {
        machine::binding_warning(self.prepare.bind.into(), self.prepare.ranks.len() as u32)
    }

    /// Time between SIGTERM and SIGKILL.
    pub(super) fn grace(&self) -> Duration {
        Duration::from_millis(self.prepare.grace_ms)
    }

    /// The mark of the job's processes.
    pub(super) fn mark(&self) -> &JobMark {
        &self.prepare.mark
    }

    /// Starts all ranks; returns their process ids.
    pub(super) fn start(&mut self) -> Result<Vec<u32>, LaunchError> {
        let mut pids = Vec::new();
        for (local_rank, rank) in (0..).zip(self.prepare.ranks.clone()) {
            let local_size = self.prepare.ranks.len() as u32;
            let command = self.command(&rank);
            let bind = self.prepare.bind.into();
            let child = machine::with_binding(bind, local_rank, local_size, || spawn::in_own_group(command));
            let spawn_error = |source| LaunchError::Spawn { rank: rank.rank, ranks: self.prepare.of, source };
            let mut child = child.map_err(spawn_error)?;
            self.ranks.add(rank.rank, &child);
            self.take_pipes(&rank, &mut child).map_err(LaunchError::system("read the ranks' output"))?;
            pids.push(child.id());
        }
        Ok(pids)
    }

    fn command(&self, rank: &PrepareRank) -> Command {
        let mut command = Command::new(&self.program);
        let pairs = |(key, value): &(OsString, OsString)| (key.clone(), value.clone());
        command
            .arg0(&self.prepare.program)
            .args(&self.prepare.args)
            .envs(rank.identity.iter().chain(&self.variables).map(pairs))
            .envs(self.prepare.env.iter().chain(&rank.own).map(pairs));
        if self.prepare.inherits {
            command.stdin(inherited_stdin(rank.rank));
        } else {
            command.stdin(if rank.stdin { Stdio::piped() } else { Stdio::null() });
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        if let Some(cwd) = &self.prepare.cwd {
            command.current_dir(cwd);
        }
        command
    }

    fn take_pipes(&mut self, rank: &PrepareRank, child: &mut Child) -> rustix::io::Result<()> {
        let out = child.stdout.take().map(|pipe| (Stream::Stdout, OwnedFd::from(pipe)));
        let err = child.stderr.take().map(|pipe| (Stream::Stderr, OwnedFd::from(pipe)));
        for (stream, pipe) in out.into_iter().chain(err) {
            rustix::io::ioctl_fionbio(&pipe, true)?;
            self.outputs.push(Output { rank: rank.rank, stream, pipe });
        }
        if let Some(pipe) = child.stdin.take().map(OwnedFd::from) {
            rustix::io::ioctl_fionbio(&pipe, true)?;
            let input = Input { rank: rank.rank, pipe: Some(pipe), pending: Vec::new(), last: false };
            self.inputs.push(input);
        }
        Ok(())
    }

    /// Signals the process groups of all ranks.
    pub(super) fn signal(&self, number: i32) {
        if let Some(signal) = Signal::from_named_raw(number) {
            self.ranks.signal(signal);
        }
    }

    /// Returns the descriptors to poll: pipes with output, if the channel has room, and pipes that may take
    /// input.
    pub(super) fn poll_descriptors(&self, reads: bool) -> Vec<PollFd<'_>> {
        let outputs = self.outputs.iter().filter(|_| reads).map(|out| PollFd::new(&out.pipe, PollFlags::IN));
        let waiting = self.inputs.iter().filter(|input| !input.pending.is_empty());
        let inputs = waiting.filter_map(|input| Some(PollFd::new(input.pipe.as_ref()?, PollFlags::OUT)));
        outputs.chain(inputs).collect()
    }

    /// Forwards data between the pipes and the launcher.
    pub(super) fn forward(&mut self, channel: &mut Channel) {
        let mut buffer = vec![0; READ_SIZE];
        if !channel.is_full() {
            self.outputs.retain(|output| output.forward(&mut buffer, channel) != Reading::Never);
        }
        for input in &mut self.inputs {
            input.forward(channel);
        }
    }

    /// Reports ranks that have ended.
    pub(super) fn report_ended(&mut self, channel: &mut Channel) {
        let mut buffer = vec![0; READ_SIZE];
        let ended: Vec<_> =
            self.ranks.newly_ended().iter().map(|(process, how)| (process.rank, *how)).collect();
        for (rank, how) in ended {
            // A rank's remaining output is sent before its end. Output that its daemons write later is not
            // awaited.
            for output in self.outputs.iter().filter(|output| output.rank == rank) {
                output.drain(&mut buffer, channel);
            }
            self.inputs.iter_mut().filter(|input| input.rank == rank).for_each(|input| input.close(channel));
            channel.queue(&FromAgent::Ended { rank, how }, b"");
        }
    }

    /// Accepts bytes for a rank's stdin; empty bytes mark the end of the input.
    pub(super) fn feed(&mut self, rank: u32, bytes: &[u8], channel: &mut Channel) {
        let input = self.inputs.iter_mut().find(|input| input.rank == rank && input.pipe.is_some());
        let Some(input) = input else {
            channel.queue(&FromAgent::StdinTaken { rank }, b"");
            return;
        };
        input.last = bytes.is_empty();
        input.pending.extend_from_slice(bytes);
        input.forward(channel);
    }

    /// Reaps ended processes that ranks have left to this process.
    pub(super) fn reap_orphans(&self) {
        self.ranks.reap_orphans();
    }

    /// Forwards the remaining output of the ranks.
    pub(super) fn drain(&self, channel: &mut Channel) {
        let mut buffer = vec![0; READ_SIZE];
        for output in &self.outputs {
            output.drain(&mut buffer, channel);
        }
    }
}

/// Returns the stdin of a rank that inherits it: rank 0 has this process's pipe or file. Terminal input goes
/// to no rank: the ranks are not in its foreground process group and would be stopped when they read.
fn inherited_stdin(rank: u32) -> Stdio {
    if rank == 0 && !io::stdin().is_terminal() { Stdio::inherit() } else { Stdio::null() }
}

/// When to read a stream again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    /// When poll reports input.
    Later,
    /// Now: more input may be available.
    Now,
    /// Never: the stream has ended.
    Never,
}

impl Output {
    /// Reads once, and forwards the bytes.
    fn forward(&self, buffer: &mut [u8], channel: &mut Channel) -> Reading {
        match read(&self.pipe, &mut *buffer) {
            Ok(0) => Reading::Never,
            Ok(n) => {
                channel.queue(&FromAgent::Output { rank: self.rank, stream: self.stream }, &buffer[..n]);
                Reading::Now
            }
            Err(Errno::AGAIN | Errno::INTR) => Reading::Later,
            Err(_) => Reading::Never,
        }
    }

    /// Reads the available output; a pipe holds at most this many reads.
    fn drain(&self, buffer: &mut [u8], channel: &mut Channel) {
        for _ in 0..16 {
            if self.forward(buffer, channel) != Reading::Now {
                return;
            }
        }
    }
}

impl Input {
    /// Writes pending bytes until the pipe would block.
    fn forward(&mut self, channel: &mut Channel) {
        let Some(pipe) = &self.pipe else { return };
        let had_pending = !self.pending.is_empty();
        while !self.pending.is_empty() {
            match write(pipe, &self.pending) {
                Ok(n) => drop(self.pending.drain(..n)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => return self.close(channel),
            }
        }
        if self.last {
            self.close(channel);
        } else if had_pending {
            channel.queue(&FromAgent::StdinTaken { rank: self.rank }, b"");
        }
    }

    /// Closes the rank's stdin.
    fn close(&mut self, channel: &mut Channel) {
        if self.pipe.take().is_some() {
            self.pending.clear();
            channel.queue(&FromAgent::StdinTaken { rank: self.rank }, b"");
        }
    }
}
