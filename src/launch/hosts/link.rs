//! The launcher's side of the connection to one agent.
//!
//! Each host has three threads: one reads frames and puts output into the sink; one writes frames and a
//! keep-alive every second; one keeps the last stderr lines of ssh. The launcher's own thread never blocks on
//! a host.

use super::ssh;
use crate::launch::{
    Hosts, LaunchError, Output,
    frame::{self, Decoder, FromAgent, ToAgent},
    processes::JobMark,
    sink::{OutputError, Sink},
    spawn,
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::{Errno, read},
};
use std::{
    collections::VecDeque,
    fs::File,
    io::{self, BufRead, BufReader, Write},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    process::{Child, ChildStderr, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

/// Time without a frame after which an agent counts as lost; it sends one every second.
const AGENT_TIMEOUT: Duration = Duration::from_secs(20);

/// Interval between keep-alive frames.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum bytes of login-shell output before the agent's greeting.
const MAX_PREAMBLE_BYTES: usize = 1 << 16;

/// Stderr lines of ssh that are kept.
const MAX_STDERR_LINES: usize = 20;

/// An event of a host's threads.
#[derive(Debug)]
pub(super) enum Event {
    /// A frame from the agent.
    Received(FromAgent),
    /// The connection is closed; the reason, as the rest of a sentence.
    Closed(String),
    /// Output of a rank could not be written.
    OutputError(OutputError),
}

/// The sending side of events: a queue, and a descriptor that wakes the polling thread.
#[derive(Clone, Debug)]
pub(super) struct Events {
    queue: mpsc::Sender<(usize, Event)>,
    waker: Arc<OwnedFd>,
}

impl Events {
    /// Returns both sides of a new queue.
    pub(super) fn new() -> io::Result<(Events, EventReceiver)> {
        let (queue, events) = mpsc::channel();
        let (read, write) = io::pipe()?;
        let (read, write) = (OwnedFd::from(read), OwnedFd::from(write));
        rustix::io::ioctl_fionbio(&read, true)?;
        rustix::io::ioctl_fionbio(&write, true)?;
        Ok((Events { queue, waker: Arc::new(write) }, EventReceiver { events, wake_pipe: read }))
    }

    fn post(&self, host: usize, event: Event) {
        // Without a receiver the job has ended.
        let _ = self.queue.send((host, event));
        let _ = rustix::io::write(&*self.waker, &[0]);
    }
}

/// The receiving side of events.
#[derive(Debug)]
pub(super) struct EventReceiver {
    events: mpsc::Receiver<(usize, Event)>,
    wake_pipe: OwnedFd,
}

impl EventReceiver {
    /// Returns a descriptor that is readable when events are queued.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.wake_pipe.as_fd()
    }

    /// Returns the queued events, each with the index of its host.
    pub(super) fn take(&self) -> Vec<(usize, Event)> {
        while matches!(read(&self.wake_pipe, &mut [0; 256]), Ok(n) if n > 0) {}
        self.events.try_iter().collect()
    }
}

/// The connection to one agent.
#[derive(Debug)]
pub(super) struct Link {
    child: Child,
    /// Queue of frames to send; `None` once the connection is closed.
    outgoing: Option<mpsc::Sender<Vec<u8>>>,
    /// Last stderr lines of ssh.
    stderr_lines: Arc<Mutex<VecDeque<String>>>,
    /// Disconnects when ssh's stderr ends.
    stderr_closed: mpsc::Receiver<()>,
}

impl Link {
    /// Starts the agent of a host.
    pub(super) fn open(
        plan: &Hosts,
        host_index: usize,
        mark: &JobMark,
        events: &Events,
        sink: &Arc<Mutex<Sink>>,
    ) -> Result<Link, LaunchError> {
        let host = &plan.hosts[host_index];
        let mut command = ssh::command(plan, host);
        let program = command.get_program().to_owned();
        let started = if host.local {
            start_here(command, mark, plan.output == Output::Inherited)
        } else {
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            // An ssh has nothing to clean up.
            spawn::in_own_group(command).map(with_pipes)
        };
        let (mut child, connection) =
            started.map_err(|source| LaunchError::Agent { host: host.name.clone(), program, source })?;
        let stderr_lines = Arc::new(Mutex::new(VecDeque::new()));
        let (outgoing, frames) = mpsc::channel();
        let (stderr_open, stderr_closed) = mpsc::channel();
        if let Some((input, output)) = connection {
            start("to-host", move || write_frames(output, &frames))?;
            let (events, sink) = (events.clone(), Arc::clone(sink));
            start("from-host", move || {
                let why = read_frames(&input, host_index, &events, &sink);
                events.post(host_index, Event::Closed(why));
            })?;
        }
        if let Some(stderr) = child.stderr.take() {
            let stderr_lines = Arc::clone(&stderr_lines);
            start("host-stderr", move || {
                keep_last_lines(stderr, &stderr_lines);
                drop(stderr_open);
            })?;
        }
        Ok(Link { child, outgoing: Some(outgoing), stderr_lines, stderr_closed })
    }

    /// Queues a frame; does not wait for its delivery.
    pub(super) fn send(&self, frame: &ToAgent, tail: &[u8]) {
        if let Some(outgoing) = &self.outgoing {
            let _ = outgoing.send(frame::encode(frame, tail));
        }
    }

    /// Returns the queue of frames to this agent.
    pub(super) fn sender(&self) -> Option<mpsc::Sender<Vec<u8>>> {
        self.outgoing.clone()
    }

    /// Closes the connection to the agent, which ends it.
    pub(super) fn close(&mut self) {
        self.outgoing = None;
    }

    /// Waits up to `within` for the process to end; returns its status and last stderr lines.
    pub(super) fn post_mortem(&mut self, within: Duration) -> (Option<ExitStatus>, Vec<String>) {
        let _ = self.stderr_closed.recv_timeout(within);
        let status = self.wait(within);
        let stderr_lines = self.stderr_lines.lock().unwrap_or_else(PoisonError::into_inner);
        (status, stderr_lines.iter().cloned().collect())
    }

    /// Waits up to `within` for the process to end, then kills it. Returns whether it ended by itself.
    pub(super) fn end(&mut self, within: Duration) -> bool {
        self.close();
        let status = self.wait(within);
        if status.is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        status.is_some_and(|status| status.code().is_some())
    }

    fn wait(&mut self, within: Duration) -> Option<ExitStatus> {
        let until = Instant::now() + within;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) if Instant::now() < until => thread::sleep(Duration::from_millis(5)),
                _ => return None,
            }
        }
    }
}

fn start(name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), LaunchError> {
    let started = thread::Builder::new().name(name.to_owned()).stack_size(256 << 10).spawn(body);
    started.map(drop).map_err(LaunchError::system("start a thread"))
}

/// The descriptors of a connection: one to read from, and one to write to.
type Connection = (OwnedFd, OwnedFd);

/// Starts the agent of this host, which has a socket of its own, so that the ranks can have the launcher's
/// stdin, stdout and stderr. The agent ends its ranks in order when the launcher is killed.
fn start_here(
    mut command: Command,
    mark: &JobMark,
    inherits: bool,
) -> io::Result<(Child, Option<Connection>)> {
    let (ours, theirs) = UnixStream::pair()?;
    if !inherits {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    }
    // The mark is for the agent and its keeper, in case that both are killed or stopped.
    command.env(JobMark::NAME, mark.value());
    let child = spawn::with_connection(command, OwnedFd::from(theirs))?;
    let input = OwnedFd::from(ours.try_clone()?);
    Ok((child, Some((input, OwnedFd::from(ours)))))
}

/// Returns a child, and the pipes to its stdin and stdout as a connection.
fn with_pipes(mut child: Child) -> (Child, Option<Connection>) {
    let pipes = child.stdout.take().zip(child.stdin.take());
    (child, pipes.map(|(stdout, stdin)| (stdout.into(), stdin.into())))
}

/// Writes queued frames and keep-alives, until the queue is closed or the connection breaks.
fn write_frames(output: OwnedFd, frames: &mpsc::Receiver<Vec<u8>>) {
    let mut output = File::from(output);
    loop {
        let frame = match frames.recv_timeout(KEEP_ALIVE_INTERVAL) {
            Ok(frame) => frame,
            Err(mpsc::RecvTimeoutError::Timeout) => frame::encode(&ToAgent::Alive, b""),
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
        };
        if output.write_all(&frame).is_err() {
            break;
        }
    }
    // A socket also has a descriptor that is still read from. A pipe is no socket, and its end is enough.
    let _ = rustix::net::shutdown(&output, rustix::net::Shutdown::Write);
}

/// Reads frames until the connection ends; returns the reason.
fn read_frames(input: &OwnedFd, host_index: usize, events: &Events, sink: &Mutex<Sink>) -> String {
    let mut decoder = Decoder::default();
    let mut buffer = vec![0; 1 << 16];
    let mut greeted = false;
    let timeout = Timespec::try_from(AGENT_TIMEOUT).ok();
    loop {
        let mut fds = [PollFd::new(input, PollFlags::IN)];
        match poll(&mut fds, timeout.as_ref()) {
            Ok(0) => return format!("no message came for {AGENT_TIMEOUT:?}"),
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return format!("reading from it failed: {error}"),
        }
        match read(input, &mut buffer) {
            Ok(0) => return "the connection ended".to_owned(),
            Ok(n) => decoder.push(&buffer[..n]),
            Err(Errno::AGAIN | Errno::INTR) => continue,
            Err(error) => return format!("reading from it failed: {error}"),
        }
        greeted = greeted || decoder.skip_to_greeting();
        if !greeted && decoder.pending().len() > MAX_PREAMBLE_BYTES {
            return "the program that answers is not tbccl's agent".to_owned();
        }
        if greeted && let Err(error) = dispatch(&mut decoder, host_index, events, sink) {
            return format!("the program that answers is not tbccl's agent: {error}");
        }
    }
}

/// Dispatches the complete frames: output to the sink, the rest to the event queue.
fn dispatch(
    decoder: &mut Decoder,
    host_index: usize,
    events: &Events,
    sink: &Mutex<Sink>,
) -> Result<(), String> {
    while let Some((frame, bytes)) = decoder.next()? {
        match frame {
            FromAgent::Output { rank, stream } => {
                let mut sink = sink.lock().unwrap_or_else(PoisonError::into_inner);
                // Each rank takes memory for its incomplete line.
                if !sink.has_rank(rank) {
                    return Err(format!("it sent output of rank {rank}, which the job does not have"));
                }
                if let Err(why) = sink.push(rank, stream, &bytes) {
                    events.post(host_index, Event::OutputError(why));
                }
            }
            FromAgent::Alive => {}
            frame => events.post(host_index, Event::Received(frame)),
        }
    }
    Ok(())
}

fn keep_last_lines(stderr: ChildStderr, stderr_lines: &Mutex<VecDeque<String>>) {
    let mut stderr = BufReader::new(stderr);
    let mut line = Vec::new();
    while stderr.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
        let mut stderr_lines = stderr_lines.lock().unwrap_or_else(PoisonError::into_inner);
        line.truncate(500);
        stderr_lines.push_back(String::from_utf8_lossy(&line).trim_end().to_owned());
        line.clear();
        if stderr_lines.len() > MAX_STDERR_LINES {
            stderr_lines.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::{Output, frame::Stream};

    #[test]
    fn output_of_a_rank_that_the_job_does_not_have_ends_the_connection() {
        let (events, _receiver) = Events::new().expect("a descriptor");
        let folder = tempfile::tempdir().expect("a temporary folder");
        let output = Output::Files { folder: folder.path().to_owned(), stamped: false };
        let sink = Mutex::new(Sink::open(&output, 2).expect("a folder"));
        let mut decoder = Decoder::default();
        let mut dispatch_output = |rank| {
            decoder.push(&frame::encode(&FromAgent::Output { rank, stream: Stream::Stdout }, b"no end"));
            dispatch(&mut decoder, 0, &events, &sink)
        };
        assert_eq!(dispatch_output(1), Ok(()));
        for rank in [2, u32::MAX] {
            let error = dispatch_output(rank).expect_err("there are ranks 0 and 1");
            assert!(error.contains(&format!("rank {rank}")), "{error}");
        }
    }
}
