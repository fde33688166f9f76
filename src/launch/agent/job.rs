//! The ranks of one host: their files and variables, their processes and their pipes.

use super::{channel::Channel, files::Files};
use crate::launch::{
    LaunchError,
    frame::{FromAgent, Prepare, PrepareRank, Stream},
    machine, program,
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
    os::{fd::OwnedFd, unix::process::CommandExt},
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

/// Bytes of a read: the capacity of a pipe.
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
    /// Closed when everything has been read, or the rank does not read.
    pipe: Option<OwnedFd>,
    /// Input that the rank has not taken yet. Its emptiness has been reported.
    pending: Vec<u8>,
    /// Whether no more input follows `pending`.
    last: bool,
}

/// The job of the launcher on this host.
#[derive(Debug)]
pub(super) struct Job {
    prepare: Prepare,
    program: PathBuf,
    /// The files that `variables` name.
    _files: Files,
    variables: Vec<(OsString, OsString)>,
    ranks: Ranks,
    outputs: Vec<Output>,
    inputs: Vec<Input>,
}

impl Job {
    /// Sees that everything is there that the ranks need.
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
        machine::obstacle(self.prepare.bind.into(), self.prepare.ranks.len() as u32)
    }

    /// From SIGTERM to SIGKILL.
    pub(super) fn grace(&self) -> Duration {
        Duration::from_millis(self.prepare.grace_ms)
    }

    /// Starts all ranks; returns their process ids.
    pub(super) fn start(&mut self) -> Result<Vec<u32>, LaunchError> {
        let mut pids = Vec::new();
        for (local_rank, rank) in (0..).zip(self.prepare.ranks.clone()) {
            let local_size = self.prepare.ranks.len() as u32;
            let command = self.command(&rank);
            let bind = self.prepare.bind.into();
            let child = machine::bound(bind, local_rank, local_size, || spawn::in_own_group(command));
            let refused = |source| LaunchError::Spawn { rank: rank.rank, ranks: self.prepare.of, source };
            let mut child = child.map_err(refused)?;
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
            .envs(self.prepare.env.iter().chain(&rank.own).map(pairs))
            .stdin(if rank.stdin { Stdio::piped() } else { Stdio::null() })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
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

    /// Signals all ranks.
    pub(super) fn signal(&self, number: i32) {
        if let Some(signal) = Signal::from_named_raw(number) {
            self.ranks.signal(signal);
        }
    }

    /// Returns the descriptors to poll: pipes with output, if the channel has room, and pipes that may take
    /// input.
    pub(super) fn interests(&self, reads: bool) -> Vec<PollFd<'_>> {
        let outputs = self.outputs.iter().filter(|_| reads).map(|out| PollFd::new(&out.pipe, PollFlags::IN));
        let waiting = self.inputs.iter().filter(|input| !input.pending.is_empty());
        let inputs = waiting.filter_map(|input| Some(PollFd::new(input.pipe.as_ref()?, PollFlags::OUT)));
        outputs.chain(inputs).collect()
    }

    /// Moves what can be moved between pipes and the launcher, and tells of the ranks that have ended.
    pub(super) fn advance(&mut self, channel: &mut Channel) {
        let mut buffer = vec![0; READ_SIZE];
        if !channel.is_full() {
            self.outputs.retain(|output| output.pass_on(&mut buffer, channel) != Next::Never);
        }
        for input in &mut self.inputs {
            input.pass_on(channel);
        }
        let ended: Vec<_> =
            self.ranks.newly_ended().iter().map(|(process, how)| (process.rank, *how)).collect();
        for (rank, how) in ended {
            // A rank's last output precedes its end; later output of daemons that it leaves is not awaited.
            for output in self.outputs.iter().filter(|output| output.rank == rank) {
                output.drain(&mut buffer, channel);
            }
            self.inputs.iter_mut().filter(|input| input.rank == rank).for_each(|input| input.close(channel));
            channel.say(&FromAgent::Ended { rank, how }, b"");
        }
    }

    /// Takes bytes for a rank's stdin, or its end.
    pub(super) fn feed(&mut self, rank: u32, bytes: &[u8], channel: &mut Channel) {
        let input = self.inputs.iter_mut().find(|input| input.rank == rank && input.pipe.is_some());
        let Some(input) = input else {
            channel.say(&FromAgent::StdinTaken { rank }, b"");
            return;
        };
        input.last = bytes.is_empty();
        input.pending.extend_from_slice(bytes);
        input.pass_on(channel);
    }

    /// Ends what is left of the ranks and of what they have started, and passes their last words on.
    pub(super) fn end(self, channel: &mut Channel) {
        let grace = self.grace();
        self.ranks.sweep(grace);
        let mut buffer = vec![0; READ_SIZE];
        for output in &self.outputs {
            output.drain(&mut buffer, channel);
        }
    }
}

/// Should a stream be read again?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// When there is more.
    Later,
    /// At once: there may be more.
    Now,
    /// Never: it has ended.
    Never,
}

impl Output {
    /// Reads once.
    fn pass_on(&self, buffer: &mut [u8], channel: &mut Channel) -> Next {
        match read(&self.pipe, &mut *buffer) {
            Ok(0) => Next::Never,
            Ok(n) => {
                channel.say(&FromAgent::Output { rank: self.rank, stream: self.stream }, &buffer[..n]);
                Next::Now
            }
            Err(Errno::AGAIN | Errno::INTR) => Next::Later,
            Err(_) => Next::Never,
        }
    }

    /// Reads the available output: a pipe holds no more than this number of reads.
    fn drain(&self, buffer: &mut [u8], channel: &mut Channel) {
        for _ in 0..16 {
            if self.pass_on(buffer, channel) != Next::Now {
                return;
            }
        }
    }
}

impl Input {
    /// Writes what the rank takes.
    fn pass_on(&mut self, channel: &mut Channel) {
        let Some(pipe) = &self.pipe else { return };
        let had = !self.pending.is_empty();
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
        } else if had {
            channel.say(&FromAgent::StdinTaken { rank: self.rank }, b"");
        }
    }

    /// The rank gets no more.
    fn close(&mut self, channel: &mut Channel) {
        if self.pipe.take().is_some() {
            self.pending.clear();
            channel.say(&FromAgent::StdinTaken { rank: self.rank }, b"");
        }
    }
}
