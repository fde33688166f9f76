//! The launcher's end of the connection to one agent.
//!
//! Three threads per host: one reads frames and puts output into the sink, one writes frames and a sign of
//! life every second, one keeps the last lines that ssh prints. The launcher's own thread never waits for a
//! host.

use super::ssh;
use crate::launch::{
    HostSpec, Hosts, LaunchError,
    frame::{self, Decoder, FromAgent, ToAgent},
    sink::{Sink, Unwritten},
    spawn,
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::{Errno, read},
};
use std::{
    collections::VecDeque,
    io::{self, BufRead, BufReader, Write},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    process::{Child, ChildStderr, ChildStdin, ChildStdout, ExitStatus, Stdio},
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

/// An agent that has said nothing for so long is lost: it says every second that it is there.
const SILENCE: Duration = Duration::from_secs(20);

/// How often we say that we are there.
const ALIVE_EVERY: Duration = Duration::from_secs(1);

/// A login shell prints less than this before the agent speaks.
const MOST_NOISE: usize = 1 << 16;

/// How many of ssh's last lines are kept.
const LAST_LINES: usize = 20;

/// An event of a host's threads.
#[derive(Debug)]
pub(super) enum Event {
    /// The agent has said something.
    Said(FromAgent),
    /// The conversation is over; why, as the rest of a sentence.
    Closed(String),
    /// Output could not be written.
    Unwritten(Unwritten),
}

/// The sending side of events: a queue, and a descriptor that wakes the polling thread.
#[derive(Clone, Debug)]
pub(super) struct Events {
    queue: mpsc::Sender<(usize, Event)>,
    waker: Arc<OwnedFd>,
}

impl Events {
    /// With the launcher's end.
    pub(super) fn new() -> io::Result<(Events, EventReceiver)> {
        let (queue, events) = mpsc::channel();
        let (read, write) = io::pipe()?;
        let (read, write) = (OwnedFd::from(read), OwnedFd::from(write));
        rustix::io::ioctl_fionbio(&read, true)?;
        rustix::io::ioctl_fionbio(&write, true)?;
        Ok((Events { queue, waker: Arc::new(write) }, EventReceiver { events, woken: read }))
    }

    fn tell(&self, host: usize, event: Event) {
        // Without a receiver the job has ended.
        let _ = self.queue.send((host, event));
        let _ = rustix::io::write(&*self.waker, &[0]);
    }
}

/// The receiving side of events.
#[derive(Debug)]
pub(super) struct EventReceiver {
    events: mpsc::Receiver<(usize, Event)>,
    woken: OwnedFd,
}

impl EventReceiver {
    /// Is readable when there are events.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.woken.as_fd()
    }

    /// The events so far, with the places of their hosts.
    pub(super) fn take(&self) -> Vec<(usize, Event)> {
        while matches!(read(&self.woken, &mut [0; 256]), Ok(n) if n > 0) {}
        self.events.try_iter().collect()
    }
}

/// An agent, as the launcher sees it.
#[derive(Debug)]
pub(super) struct Link {
    child: Child,
    /// Frames to send. Dropped to end the conversation.
    to: Option<mpsc::Sender<Vec<u8>>>,
    /// The last lines that ssh has printed.
    said: Arc<Mutex<VecDeque<String>>>,
    /// Is closed when ssh prints no more.
    quiet: mpsc::Receiver<()>,
}

impl Link {
    /// Starts the agent of a host.
    pub(super) fn open(
        plan: &Hosts,
        at: usize,
        host: &HostSpec,
        events: &Events,
        sink: &Arc<Mutex<Sink>>,
    ) -> Result<Link, LaunchError> {
        let mut command = ssh::command(plan, host);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let program = command.get_program().to_owned();
        // Our own agent ends its ranks in order when we are killed; ssh has nothing to put in order.
        let child =
            if host.local { spawn::in_own_group_to_stay(command) } else { spawn::in_own_group(command) };
        let mut child =
            child.map_err(|source| LaunchError::Agent { host: host.name.clone(), program, source })?;
        let said = Arc::new(Mutex::new(VecDeque::new()));
        let (to, frames) = mpsc::channel();
        let (noise, quiet) = mpsc::channel();
        if let Some(stdin) = child.stdin.take() {
            start("to-host", move || write_frames(stdin, &frames))?;
        }
        if let Some(stdout) = child.stdout.take() {
            let (events, sink) = (events.clone(), Arc::clone(sink));
            start("from-host", move || {
                let why = read_frames(&stdout, at, &events, &sink);
                events.tell(at, Event::Closed(why));
            })?;
        }
        if let Some(stderr) = child.stderr.take() {
            let said = Arc::clone(&said);
            start("host-stderr", move || {
                keep_last_lines(stderr, &said);
                drop(noise);
            })?;
        }
        Ok(Link { child, to: Some(to), said, quiet })
    }

    /// Sends a frame, some time.
    pub(super) fn send(&self, what: &ToAgent, tail: &[u8]) {
        if let Some(to) = &self.to {
            let _ = to.send(frame::encode(what, tail));
        }
    }

    /// Returns the sender of frames to this agent.
    pub(super) fn sender(&self) -> Option<mpsc::Sender<Vec<u8>>> {
        self.to.clone()
    }

    /// Ends the conversation.
    pub(super) fn close(&mut self) {
        self.to = None;
    }

    /// How the process has ended, within a time, and what it has printed.
    pub(super) fn post_mortem(&mut self, within: Duration) -> (Option<ExitStatus>, Vec<String>) {
        let _ = self.quiet.recv_timeout(within);
        let status = self.wait(within);
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        (status, said.iter().cloned().collect())
    }

    /// Waits for the process' end; kills it when the time is over.
    pub(super) fn end(&mut self, within: Duration) {
        self.close();
        if self.wait(within).is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
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

/// Returns when there will be no more frames to write, or nobody reads them.
fn write_frames(mut stdin: ChildStdin, frames: &mpsc::Receiver<Vec<u8>>) {
    loop {
        let frame = match frames.recv_timeout(ALIVE_EVERY) {
            Ok(frame) => frame,
            Err(mpsc::RecvTimeoutError::Timeout) => frame::encode(&ToAgent::Alive, b""),
            Err(mpsc::RecvTimeoutError::Disconnected) => return,
        };
        if stdin.write_all(&frame).is_err() {
            return;
        }
    }
}

/// Returns why there will be no more frames.
fn read_frames(stdout: &ChildStdout, at: usize, events: &Events, sink: &Mutex<Sink>) -> String {
    let mut decoder = Decoder::default();
    let mut buffer = vec![0; 1 << 16];
    let mut greeted = false;
    let silence = Timespec::try_from(SILENCE).ok();
    loop {
        let mut fds = [PollFd::from_borrowed_fd(stdout.as_fd(), PollFlags::IN)];
        match poll(&mut fds, silence.as_ref()) {
            Ok(0) => return format!("nothing was heard of it for {SILENCE:?}"),
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return format!("reading from it failed: {error}"),
        }
        match read(stdout, &mut buffer) {
            Ok(0) => return "the connection ended".to_owned(),
            Ok(n) => decoder.push(&buffer[..n]),
            Err(Errno::AGAIN | Errno::INTR) => continue,
            Err(error) => return format!("reading from it failed: {error}"),
        }
        greeted = greeted || decoder.skip_to_greeting();
        if !greeted && decoder.pending().len() > MOST_NOISE {
            return "what answers there is not tbccl's agent".to_owned();
        }
        if greeted && let Err(what) = tell_all(&mut decoder, at, events, sink) {
            return format!("what answers there is not tbccl's agent: {what}");
        }
    }
}

/// Passes on the frames that are whole.
fn tell_all(decoder: &mut Decoder, at: usize, events: &Events, sink: &Mutex<Sink>) -> Result<(), String> {
    while let Some((said, bytes)) = decoder.next()? {
        match said {
            FromAgent::Output { rank, stream } => {
                let mut sink = sink.lock().unwrap_or_else(PoisonError::into_inner);
                if let Err(why) = sink.push(rank, stream, &bytes) {
                    events.tell(at, Event::Unwritten(why));
                }
            }
            FromAgent::Alive => {}
            said => events.tell(at, Event::Said(said)),
        }
    }
    Ok(())
}

fn keep_last_lines(stderr: ChildStderr, said: &Mutex<VecDeque<String>>) {
    let mut stderr = BufReader::new(stderr);
    let mut line = Vec::new();
    while stderr.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
        let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
        line.truncate(500);
        said.push_back(String::from_utf8_lossy(&line).trim_end().to_owned());
        line.clear();
        if said.len() > LAST_LINES {
            said.pop_front();
        }
    }
}
