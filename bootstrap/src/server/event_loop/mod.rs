//! The event loop of a rendezvous: who connects, what they say, what they are told, and when they have to go.
//!
//! A turn waits for the system, takes in what came, passes time, and brings what the job has to say. No turn waits for
//! anyone: a connection that says much has its turn again after the others, one that reads nothing keeps its mail.

mod admission;
mod listeners;

use super::{
    super::{
        frame_stream::ReadProgress,
        liveness,
        wire::{FromServer, Hello, encode},
    },
    ListenerUse, StatusCell,
    connection::{InboundConnection, Message, Stage},
    job::{Job, NotAdmitted, Outgoing},
    rejections::{RejectionCounters, RejectionLog},
};
use admission::{Admission, HELLO_TIMEOUT};
use listeners::Listener;
use mio::{Events, Interest, Poll, Token, Waker, unix::SourceFd};
use rustix::fd::OwnedFd;
use std::{
    collections::{BTreeSet, HashMap},
    io::{self, ErrorKind},
    net::TcpListener,
    os::unix::net::UnixListener,
    sync::{Arc, PoisonError, mpsc::Receiver},
    time::{Duration, Instant},
};
use transport::secure::Secret;

/// How long a guest that has to go may take to hear why.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

const WAKE: Token = Token(0);

/// How a rank whose connection was closed has ended, as far as that says.
const CLOSED: &str = "ended, or closed its connection to the launcher, without a word";

/// What the rest of the process wants of the rendezvous.
#[derive(Debug)]
pub(super) enum Command {
    Exited { rank: u32, pid: u32, how: String },
    Succeeded { rank: u32, pid: u32 },
    Close,
}

/// What the rest of the process has in common with the loop.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) commands: Receiver<Command>,
    pub(super) counts: Arc<RejectionCounters>,
    pub(super) status_cell: Arc<StatusCell>,
}

/// A rendezvous that is served.
#[derive(Debug)]
pub(super) struct EventLoop {
    poll: Poll,
    /// Of the Unix socket.
    address: String,
    /// None once they are closed.
    listeners: Vec<Listener>,
    /// How many there were.
    listener_count: usize,
    listener_use: ListenerUse,
    /// At which doors somebody may be.
    pending_listeners: BTreeSet<usize>,
    /// Nobody is taken in until then.
    accept_paused_until: Option<Instant>,
    secret: Option<Secret>,
    connections: HashMap<Token, InboundConnection>,
    admission: Admission,
    /// Which guests have to have come further, and when.
    deadlines: BTreeSet<(Instant, Token)>,
    /// Which guests may have something to say, and which have mail.
    ready: BTreeSet<Token>,
    unflushed: BTreeSet<Token>,
    /// The connection of each rank.
    tokens: HashMap<u32, Token>,
    next_token: usize,
    job: Job,
    rejections: RejectionLog,
    shared: Shared,
    /// When the connections of ranks of other hosts are looked at next.
    next_probe: Instant,
    /// Set when the rendezvous is to end: until when guests may hear why.
    closing_until: Option<Instant>,
}

impl EventLoop {
    pub(super) fn new(
        (job, listener_use): (Job, ListenerUse),
        secret: Option<Secret>,
        (unix, address): (UnixListener, String),
        networks: Vec<TcpListener>,
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
        };
        Ok((event_loop, waker))
    }

    /// Serves until told to close.
    pub(super) fn run(mut self) {
        let mut events = Events::with_capacity(1024);
        while !self.is_closed() {
            let timeout = self.timeout();
            match self.poll.poll(&mut events, timeout) {
                Ok(()) => {}
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                // Without events there is nothing to serve by; ranks see their connections end.
                Err(_) => break,
            }
            for event in &events {
                match event.token() {
                    WAKE => {}
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
        let lingers =
            || self.connections.values().any(|connection| matches!(connection.stage, Stage::Closing));
        self.closing_until.is_some_and(|until| Instant::now() >= until || !lingers())
    }

    /// Until when there is nothing to do unless something happens.
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
        // The system counts in whole milliseconds, and not up.
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
                Command::Succeeded { rank, pid } => self.job.report_success(rank, pid),
                Command::Close => {
                    self.job.refuse("the launcher is ending the job");
                    self.closing_until = Some(now + DRAIN_TIMEOUT);
                }
            }
        }
    }

    /// Reads what a rank has said before it ended: it may have said why. Whoever has its connection now may go on saying
    /// things, so not without end.
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

    /// Hears what a guest says.
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
        match connection.frames.flush() {
            Ok(true) if matches!(connection.stage, Stage::Closing) => connection.frames.socket().finish(),
            Ok(_) => {}
            Err(why) => return self.close(token, connection, Some(&why), now),
        }
        self.connections.insert(token, connection);
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
                    self.reject(token, connection, &"a rank", &why, now);
                }
                Message::FromRank(rank, message, bytes) => {
                    self.job.handle(rank, message, bytes, now).map_err(io::Error::other)?;
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
            // Descriptors don't travel over TCP; if the rank is on this host, it can come in another way.
            connection.frames.send(encode(&FromServer::Redirect { address: self.address.clone() }));
            return self.start_closing(token, connection, now);
        }
        let (rank, size, pid) = (hello.member.rank, hello.size, hello.member.pid);
        let peer_timeout = Duration::from_millis(hello.peer_timeout_ms);
        match self.job.admit(hello, arena, now) {
            Ok(rank) => {
                connection.stage = Stage::Rank(rank);
                // A socket that can't be told is broken, which reading from it says.
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
                self.reject(token, connection, &who, &why, now);
            }
        }
    }

    /// Tells a guest why it can't be let in, and the owner of the rendezvous as well.
    fn reject(
        &mut self,
        token: Token,
        connection: &mut InboundConnection,
        who: &dyn std::fmt::Display,
        why: &str,
        now: Instant,
    ) {
        self.rejections.record(&self.shared.counts.ranks, who, &why, now);
        let absent = self.job.absent().to_vec();
        connection.frames.send(encode(&FromServer::Refused { why: why.to_owned(), absent }));
        self.start_closing(token, connection, now);
    }

    /// From now on a guest is not listened to.
    fn start_closing(&mut self, token: Token, connection: &mut InboundConnection, now: Instant) {
        connection.stage = Stage::Closing;
        self.set_deadline(token, connection, Some(now + DRAIN_TIMEOUT));
    }

    /// A connection is over; if there was no reason, its other end closed it.
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
                    self.rejections.record(&counts.ranks, &who, why, now);
                }
                self.job.connection_lost(
                    rank,
                    &describe_end(why, connection.frames.socket().peer_timeout()),
                    now,
                );
            }
            Stage::Closing => {}
            Stage::Unauthenticated => {
                self.admission.remove(token, connection.since);
                let silent =
                    io::Error::other("it closed the connection before it had proved that it has the secret");
                self.rejections.record(
                    &counts.strangers,
                    connection.frames.socket(),
                    why.unwrap_or(&silent),
                    now,
                );
            }
            Stage::AwaitingHello | Stage::AwaitingArena(_) => {
                // Whoever only looks whether we are there says nothing.
                if let Some(why) = why {
                    self.rejections.record(&counts.strangers, connection.frames.socket(), why, now);
                }
            }
        }
        // Dropping the socket takes it off the list of those that are waited for.
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
                _ => "it did not say in time who it is",
            };
            self.close_with_reason(token, &what, now);
        }
    }

    /// Brings ranks what the job has to say to them.
    fn deliver(&mut self, now: Instant) {
        for outgoing in self.job.take_outgoing() {
            let (Outgoing::Payload(rank, _) | Outgoing::End(rank)) = outgoing;
            let Some(token) = self.tokens.get(&rank).copied() else { continue };
            let Some(mut connection) = self.connections.remove(&token) else { continue };
            match outgoing {
                Outgoing::Payload(_, payload) => connection.frames.send(payload),
                Outgoing::End(_) => {
                    self.start_closing(token, &mut connection, now);
                    self.tokens.remove(&rank);
                }
            }
            self.unflushed.insert(token);
            self.connections.insert(token, connection);
        }
        for token in std::mem::take(&mut self.unflushed) {
            let Some(connection) = self.connections.get_mut(&token) else { continue };
            match connection.frames.flush() {
                Ok(true) if matches!(connection.stage, Stage::Closing) => connection.frames.socket().finish(),
                Ok(_) => {}
                Err(why) => {
                    if let Some(connection) = self.connections.remove(&token) {
                        self.close(token, connection, Some(&why), now);
                    }
                }
            }
        }
    }

    /// Whose host has been silent for too long?
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

/// Did the other end say something that is not ours?
fn is_protocol_violation(why: &io::Error) -> bool {
    matches!(why.kind(), ErrorKind::InvalidData | ErrorKind::PermissionDenied | ErrorKind::Other)
}

/// How a rank whose connection broke has ended, as the rest of a sentence.
fn describe_end(why: Option<&io::Error>, peer_timeout: Duration) -> String {
    match why {
        None => CLOSED.to_owned(),
        Some(e) if is_protocol_violation(e) => format!("said what no rank says ({e}), and was hung up on"),
        Some(e) => match e.kind() {
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::ConnectionAborted => {
                CLOSED.to_owned()
            }
            ErrorKind::TimedOut => {
                format!("can't be reached any more: its host has not answered for {peer_timeout:?}")
            }
            _ => format!("can't be reached any more: {e}"),
        },
    }
}
