//! Event loop of a rendezvous: accepts connections, reads messages, sends answers and enforces deadlines.
//!
//! Each iteration waits for events, accepts and reads, advances deadlines, and sends what the job has queued.
//! No iteration waits for a single peer: a connection with much input yields to the others, and the messages
//! for a peer that does not read stay queued.

mod admission;
mod delivery;
mod listeners;

use super::{
    super::{
        clock::monotonic_nanos,
        frame_stream::ReadProgress,
        liveness,
        wire::{Answer, FromRank, FromServer, Hello, Question, encode},
    },
    ListenerUse, StatusCell,
    connection::{InboundConnection, Message, Stage},
    job::{Job, NotAdmitted, Requester},
    rejections::{RejectionCounters, RejectionLog},
};
use admission::{Admission, HELLO_TIMEOUT};
use events::{Occurrence, audit};
use listeners::Listener;
use mio::{Events, Interest, Poll, Token, Waker, unix::SourceFd};
use rustix::fd::{AsRawFd, OwnedFd};
use std::{
    collections::{BTreeSet, HashMap},
    io::{self, ErrorKind},
    net::TcpListener,
    os::unix::net::{UnixListener, UnixStream},
    sync::{Arc, PoisonError, mpsc::Receiver},
    time::{Duration, Instant},
};
use transport::secure::Secret;

/// How long a closing connection may take to read the reason.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

const WAKE: Token = Token(0);

/// Token of the socket for questions. No connection gets so large a number.
const INQUIRIES: Token = Token(usize::MAX - 1);

/// Description of the end of a rank whose connection was closed without a goodbye.
const CLOSED: &str = "ended, or closed its connection to the launcher, without a goodbye";

/// Commands from other threads of the process.
#[derive(Debug)]
pub(super) enum Command {
    Exited {
        rank: u32,
        pid: u32,
        how: String,
    },
    Succeeded {
        rank: u32,
        pid: u32,
    },
    /// Takes in a connection of this process.
    Adopt(UnixStream),
    /// Ends the job, for a reason that ranks are told.
    Close {
        why: Option<String>,
    },
}

/// State shared with other threads of the process.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) commands: Receiver<Command>,
    pub(super) counts: Arc<RejectionCounters>,
    pub(super) status_cell: Arc<StatusCell>,
}

/// Event loop of one rendezvous.
#[derive(Debug)]
pub(super) struct EventLoop {
    poll: Poll,
    /// Address of the Unix socket.
    address: String,
    /// Empty once they are closed.
    listeners: Vec<Listener>,
    /// Initial number of listeners.
    listener_count: usize,
    /// Socket for questions of processes of this user, if the system granted one.
    inquiry_listener: Option<UnixListener>,
    listener_use: ListenerUse,
    /// Indices of listeners that may have a waiting connection.
    pending_listeners: BTreeSet<usize>,
    /// No connection is accepted before this time.
    accept_paused_until: Option<Instant>,
    secret: Option<Secret>,
    connections: HashMap<Token, InboundConnection>,
    admission: Admission,
    /// Deadlines of connections that have to reach the next stage.
    deadlines: BTreeSet<(Instant, Token)>,
    /// Connections that may have input, and connections with queued output.
    ready: BTreeSet<Token>,
    unflushed: BTreeSet<Token>,
    /// Token of each rank's connection.
    tokens: HashMap<u32, Token>,
    next_token: usize,
    job: Job,
    rejections: RejectionLog,
    shared: Shared,
    /// Time of the next liveness check of remote hosts.
    next_probe: Instant,
    /// Set when the server is to end: until when peers may read the reason.
    closing_until: Option<Instant>,
    /// Whether the job was ended for a reason that ranks which come meanwhile should know.
    has_reason: bool,
}

impl EventLoop {
    pub(super) fn new(
        (job, listener_use): (Job, ListenerUse),
        secret: Option<Secret>,
        (unix, address): (UnixListener, String),
        networks: Vec<TcpListener>,
        inquiry_listener: Option<UnixListener>,
        shared: Shared,
    ) -> io::Result<(EventLoop, Waker)> {
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), WAKE)?;
        let listeners: Vec<Listener> =
            [Listener::Unix(unix)].into_iter().chain(networks.into_iter().map(Listener::Tcp)).collect();
        for (at, listener) in listeners.iter().enumerate() {
            let mut source = SourceFd(&listener.raw_fd());
            poll.registry().register(&mut source, Token(1 + at), Interest::READABLE)?;
        }
        if let Some(listener) = &inquiry_listener {
            poll.registry().register(&mut SourceFd(&listener.as_raw_fd()), INQUIRIES, Interest::READABLE)?;
        }
        let now = Instant::now();
        let event_loop = EventLoop {
            poll,
            address,
            next_token: 1 + listeners.len(),
            listener_count: listeners.len(),
            listener_use,
            pending_listeners: BTreeSet::new(),
            accept_paused_until: None,
            listeners,
            inquiry_listener,
            secret,
            connections: HashMap::new(),
            admission: Admission::new(job.ranks()),
            deadlines: BTreeSet::new(),
            ready: BTreeSet::new(),
            unflushed: BTreeSet::new(),
            tokens: HashMap::new(),
            job,
            rejections: RejectionLog::new(now),
            shared,
            next_probe: now,
            closing_until: None,
            has_reason: false,
        };
        Ok((event_loop, waker))
    }

    /// Runs until told to close.
    pub(super) fn run(mut self) {
        let mut events = Events::with_capacity(1024);
        while !self.is_closed() {
            let timeout = self.timeout();
            match self.poll.poll(&mut events, timeout) {
                Ok(()) => {}
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                // Without events the loop cannot go on. Ranks see their connections end.
                Err(_) => break,
            }
            for event in &events {
                match event.token() {
                    WAKE => {}
                    INQUIRIES => self.accept_inquirers(Instant::now()),
                    Token(at) if at <= self.listener_count => {
                        self.pending_listeners.insert(at - 1);
                    }
                    token => {
                        self.ready.insert(token);
                    }
                }
            }
            self.step(Instant::now());
        }
        self.rejections.summarize();
    }

    fn is_closed(&self) -> bool {
        let is_waited_for = |stage: &Stage| match stage {
            Stage::Closing => true,
            // A process whose hello is on its way is told why the job has ended.
            Stage::Unauthenticated | Stage::AwaitingHello | Stage::AwaitingArena(_) => self.has_reason,
            _ => false,
        };
        let lingers = || self.connections.values().any(|connection| is_waited_for(&connection.stage));
        self.closing_until.is_some_and(|until| Instant::now() >= until || !lingers())
    }

    /// Returns how long to wait for events; `None` without a deadline.
    fn timeout(&self) -> Option<Duration> {
        if !self.ready.is_empty()
            || (!self.pending_listeners.is_empty() && self.accept_paused_until.is_none())
        {
            return Some(Duration::ZERO);
        }
        let has_remote = self.listener_count > 1 && !self.connections.is_empty();
        let due = [
            self.accept_paused_until,
            self.closing_until,
            self.job.next_deadline(),
            self.rejections.next_deadline(),
            self.deadlines.first().map(|(at, _)| *at),
            has_remote.then_some(self.next_probe),
        ];
        let next = due.into_iter().flatten().min()?;
        // The system rounds down to whole milliseconds.
        Some(next.saturating_duration_since(Instant::now()) + Duration::from_millis(1))
    }

    fn step(&mut self, now: Instant) {
        self.run_commands(now);
        self.accept_all(now);
        for token in std::mem::take(&mut self.ready) {
            self.serve(token, now);
        }
        if self.listener_use == ListenerUse::Shared && self.job.is_complete() {
            self.close_listeners();
        }
        self.close_overdue(now);
        self.job.tick(now);
        self.job.send_board_updates();
        self.deliver(now);
        self.check_remote_hosts(now);
        self.rejections.tick(now);
        self.publish_status();
    }

    fn run_commands(&mut self, now: Instant) {
        while let Ok(command) = self.shared.commands.try_recv() {
            match command {
                Command::Exited { rank, pid, how } => {
                    self.drain_messages(rank, now);
                    self.job.report_exit(rank, pid, &how);
                }
                Command::Succeeded { rank, pid } => self.job.report_success(rank, pid, now),
                Command::Adopt(stream) => self.adopt(stream, now),
                Command::Close { why } => {
                    // A rank whose failure ends the rendezvous may have sent the reason.
                    for rank in self.job.present() {
                        self.drain_messages(rank, now);
                    }
                    self.job.end(why.as_deref());
                    self.has_reason = why.is_some();
                    self.closing_until = Some(now + DRAIN_TIMEOUT);
                }
            }
        }
    }

    /// Reads the messages that a rank sent before its process ended, which may include the reason. The number
    /// of reads is bounded, since another process may still write to the connection.
    fn drain_messages(&mut self, rank: u32, now: Instant) {
        for _ in 0..16 {
            let Some(token) = self.tokens.get(&rank).copied() else { return };
            self.serve(token, now);
            if !self.ready.remove(&token) {
                return;
            }
        }
    }

    fn set_deadline(&mut self, token: Token, connection: &mut InboundConnection, deadline: Option<Instant>) {
        if let Some(before) = connection.deadline {
            self.deadlines.remove(&(before, token));
        }
        connection.deadline = deadline;
        self.deadlines.extend(deadline.map(|at| (at, token)));
    }

    /// Reads and handles the messages of a connection.
    fn serve(&mut self, token: Token, now: Instant) {
        let Some(mut connection) = self.connections.remove(&token) else { return };
        let filled = connection.fill();
        let handled = self.handle_messages(token, &mut connection, now);
        match (handled, filled) {
            (Ok(()), Ok(ReadProgress::More)) => {
                self.ready.insert(token);
            }
            (Ok(()), Ok(ReadProgress::Drained)) => {}
            (Err(why), _) => return self.close(token, connection, Some(&why), now),
            (_, Err(why)) => return self.close(token, connection, Some(&why), now),
            (_, Ok(ReadProgress::Closed)) => return self.close(token, connection, None, now),
        }
        match connection.flush(token, self.poll.registry()) {
            Ok(()) => drop(self.connections.insert(token, connection)),
            Err(why) => self.close(token, connection, Some(&why), now),
        }
    }

    fn handle_messages(
        &mut self,
        token: Token,
        connection: &mut InboundConnection,
        now: Instant,
    ) -> io::Result<()> {
        if matches!(connection.stage, Stage::Unauthenticated) && connection.frames.is_trusted() {
            self.admission.remove(token, connection.since);
            connection.stage = Stage::AwaitingHello;
            self.set_deadline(token, connection, Some(now + HELLO_TIMEOUT));
        }
        while let Some(message) = connection.next()? {
            match message {
                Message::Hello(hello, arena) => self.handle_hello(token, connection, *hello, arena, now),
                Message::OtherVersion(why) => {
                    self.job.refuse_unless_complete(&why);
                    let who = format!("a rank ({})", connection.frames.socket());
                    self.reject(token, connection, (Occurrence::WrongVersion, &who), &why, now);
                }
                // Read now: the time of this turn may be before the request was sent.
                Message::FromRank(_, FromRank::RequestTime { number }, _) => {
                    let nanos = monotonic_nanos();
                    connection.frames.send(encode(&FromServer::Time { number, nanos }));
                }
                Message::FromRank(rank, message, bytes) => {
                    self.job.handle(rank, message, bytes, now).map_err(io::Error::other)?;
                }
                Message::Question(Question::Members) => {
                    connection.frames.send(encode(&Answer::Members(self.job.members())));
                }
                Message::Question(Question::Snapshot) => {
                    self.job.request_snapshot(Requester::Inquirer(token), false, now);
                }
            }
        }
        Ok(())
    }

    fn handle_hello(
        &mut self,
        token: Token,
        connection: &mut InboundConnection,
        hello: Hello,
        arena: Option<OwnedFd>,
        now: Instant,
    ) {
        if hello.arena && arena.is_none() {
            // Descriptors do not travel over TCP. A rank of this host can connect again over the Unix socket.
            connection.frames.send(encode(&FromServer::Redirect { address: self.address.clone() }));
            return self.start_closing(token, connection, now);
        }
        let (rank, size, pid) = (hello.member.rank, hello.size, hello.member.pid);
        let host = hello.member.host.clone();
        let peer_timeout = Duration::from_millis(hello.peer_timeout_ms);
        match self.job.admit(hello, arena, now) {
            Ok(rank) => {
                audit_joined(rank, size, pid, &host, connection);
                connection.stage = Stage::Rank(rank);
                // An error means that the socket is broken, which the next read reports.
                let _ = connection.frames.socket().set_peer_timeout(peer_timeout);
                self.tokens.insert(rank, token);
                self.set_deadline(token, connection, None);
            }
            Err(NotAdmitted::OtherJob) => {
                connection.frames.send(encode(&FromServer::Busy { job: self.job.name().to_owned() }));
                self.start_closing(token, connection, now);
            }
            Err(NotAdmitted::Refused(why)) => {
                let who = format!("rank {rank} of {size} (process {pid}, {})", connection.frames.socket());
                self.reject(token, connection, (Occurrence::Refused, &who), &why, now);
            }
        }
    }

    /// Refuses a connection: sends the reason to the peer, and logs it.
    fn reject(
        &mut self,
        token: Token,
        connection: &mut InboundConnection,
        (what, who): (Occurrence, &dyn std::fmt::Display),
        why: &str,
        now: Instant,
    ) {
        self.rejections.record((what, &self.shared.counts.ranks), who, &why, now);
        let absent = self.job.absent().to_vec();
        connection.frames.send(encode(&FromServer::Refused { why: why.to_owned(), absent }));
        self.start_closing(token, connection, now);
    }

    /// Ignores further input and closes the connection once its output is sent.
    fn start_closing(&mut self, token: Token, connection: &mut InboundConnection, now: Instant) {
        connection.stage = Stage::Closing;
        self.set_deadline(token, connection, Some(now + DRAIN_TIMEOUT));
    }

    /// Handles the end of a connection; without `why`, the peer closed it.
    fn close(
        &mut self,
        token: Token,
        mut connection: InboundConnection,
        why: Option<&io::Error>,
        now: Instant,
    ) {
        self.set_deadline(token, &mut connection, None);
        let counts = Arc::clone(&self.shared.counts);
        match connection.stage {
            Stage::Rank(rank) | Stage::Contributing(rank, _) => {
                self.tokens.remove(&rank);
                if let Some(why) = why.filter(|why| is_protocol_violation(why)) {
                    let who = format!("rank {rank} ({})", connection.frames.socket());
                    self.rejections.record((Occurrence::Violation, &counts.ranks), &who, why, now);
                }
                self.job.connection_lost(
                    rank,
                    &describe_end(why, connection.frames.socket().peer_timeout()),
                    is_closed(why),
                    now,
                );
            }
            Stage::Closing => {}
            Stage::Inquirer => self.job.forget_inquirer(token),
            Stage::Unauthenticated => {
                self.admission.remove(token, connection.since);
                let silent =
                    io::Error::other("it closed the connection before it had proved that it has the secret");
                self.rejections.record(
                    (Occurrence::FailedProof, &counts.strangers),
                    connection.frames.socket(),
                    why.unwrap_or(&silent),
                    now,
                );
            }
            Stage::AwaitingHello | Stage::AwaitingArena(_) => {
                // A peer that only probes the port sends nothing.
                if let Some(why) = why {
                    let what = (Occurrence::Violation, &counts.strangers);
                    self.rejections.record(what, connection.frames.socket(), why, now);
                }
            }
        }
        // Dropping the socket deregisters it.
    }

    fn close_with_reason(&mut self, token: Token, why: &dyn std::fmt::Display, now: Instant) {
        if let Some(connection) = self.connections.remove(&token) {
            self.close(token, connection, Some(&io::Error::other(why.to_string())), now);
        }
    }

    fn close_overdue(&mut self, now: Instant) {
        while let Some((_, token)) = self.deadlines.first().filter(|(at, _)| *at <= now).copied() {
            self.deadlines.pop_first();
            let what = match self.connections.get(&token).map(|connection| &connection.stage) {
                Some(Stage::Unauthenticated) => "it did not prove in time that it has the secret",
                _ => "it did not send its hello in time",
            };
            self.close_with_reason(token, &what, now);
        }
    }

    /// Closes connections whose host has not answered for too long.
    fn check_remote_hosts(&mut self, now: Instant) {
        if self.listener_count == 1 || now < self.next_probe {
            return;
        }
        self.next_probe = now + liveness::PROBE_INTERVAL;
        let ranks = self.connections.iter_mut().filter(|(_, connection)| connection.rank().is_some());
        let silent = ranks
            .filter_map(|(token, connection)| connection.frames.socket().is_peer_silent().then_some(*token));
        for token in silent.collect::<Vec<_>>() {
            if let Some(connection) = self.connections.remove(&token) {
                self.close(token, connection, Some(&ErrorKind::TimedOut.into()), now);
            }
        }
    }

    fn publish_status(&self) {
        let present = self.job.status();
        let board = &self.shared.status_cell;
        let mut known = board.status.lock().unwrap_or_else(PoisonError::into_inner);
        if *known != present {
            *known = present;
            board.changed.notify_all();
        }
    }
}

/// Writes to the audit that a rank has joined.
fn audit_joined(rank: u32, size: u32, pid: u32, host: &str, connection: &mut InboundConnection) {
    let facts =
        [("rank", rank.into()), ("size", size.into()), ("rank_pid", pid.into()), ("rank_host", host.into())];
    audit(Occurrence::Joined, &connection.frames.socket().to_string(), &facts);
}

/// Whether the error means that the peer violated the protocol.
fn is_protocol_violation(why: &io::Error) -> bool {
    matches!(why.kind(), ErrorKind::InvalidData | ErrorKind::PermissionDenied | ErrorKind::Other)
}

/// Whether the peer, or the end of its process, has closed the connection.
fn is_closed(why: Option<&io::Error>) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset};
    why.is_none_or(|e| matches!(e.kind(), ConnectionReset | BrokenPipe | ConnectionAborted))
}

/// Describes the end of a rank whose connection broke, as the rest of a sentence.
fn describe_end(why: Option<&io::Error>, peer_timeout: Duration) -> String {
    match why {
        Some(e) if is_protocol_violation(e) => format!("violated the protocol ({e}), and was disconnected"),
        Some(e) if e.kind() == ErrorKind::TimedOut => {
            format!("is no longer reachable: its host has not answered for {peer_timeout:?}")
        }
        Some(e) if !is_closed(why) => format!("is no longer reachable: {e}"),
        _ => CLOSED.to_owned(),
    }
}
