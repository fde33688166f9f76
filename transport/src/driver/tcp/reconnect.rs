//! Connections of channels: makes them, replaces broken ones, and returns to the preferred cable.
//!
//! Part of the connector's thread. Either end may replace a connection; a crossing of two attempts is decided
//! as for first connections. A path that was given up is tried again every second or less often, by the end
//! of the lower rank, until it works.
//!
//! | module | content |
//! |---|---|
//! | `returns` | return of data to the preferred cable, and warnings about cables |

mod returns;

use super::{
    connection_table::{Key, Verdict},
    dialer::Dialer,
    match_acks::MatchAcks,
    pending::{Inbound, InitiatorHello, Outbound},
    resume::{Accepted, Answer, ChannelTable, Failure, PendingSocket, Phase},
    routes::Route,
    socket::Socket,
    warning::WarningHandler,
};
use crate::secure::{SecureError, Session};
use events::{target, tracing::debug};
use rustix::event::{PollFd, PollFlags};
use std::{
    collections::{BTreeMap, VecDeque},
    io::ErrorKind,
    sync::Arc,
    time::{Duration, Instant},
};

/// Time for an attempt over one path.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(1);
/// Time for the initiator to send its position, once its attempt is accepted.
const OFFSET_TIMEOUT: Duration = Duration::from_secs(1);
/// Pause after an attempt over each path has failed, or the peer has declined an attempt.
const RETRY_DELAY: Duration = Duration::from_millis(100);
/// Time until a path that was given up is tried again: doubled by each loss, up to a limit.
const RETURN_DELAY: Duration = Duration::from_secs(1);
const MAX_RETURN_DOUBLINGS: u32 = 4;
/// Time after which earlier losses no longer count.
const LOSS_MEMORY: Duration = Duration::from_secs(30);

/// A connection that is being made by this end.
#[derive(Debug)]
struct Task {
    key: Key,
    /// Whether the present connection works, over a path of later choice.
    is_return: bool,
    /// Whether the channel was connected before.
    is_replacement: bool,
    attempt: Option<Outbound>,
    /// Whether the channel is stopped for the attempt.
    is_started: bool,
    /// Ways left to try, and that of the attempt.
    routes: VecDeque<Route>,
    route: Option<Route>,
    /// When to give up the attempt, or to start the next one.
    until: Instant,
    /// When to give up the channel.
    deadline: Instant,
    /// Attempts since the ways were listed, and those that the peer's system has refused.
    attempts: u32,
    refusals: u32,
    /// Latest error over each way.
    errors: Vec<(Route, String)>,
}

impl Task {
    fn note_error(&mut self, route: Route, error: String) {
        self.errors.retain(|(other, _)| *other != route);
        self.errors.push((route, error));
    }
}

/// A connection that the peer has made, and whose position has not arrived yet.
#[derive(Debug)]
struct Awaited {
    key: Key,
    socket: Arc<Socket>,
    until: Instant,
}

/// Losses of a channel's connections.
#[derive(Clone, Copy, Debug, Default)]
struct Losses {
    count: u32,
    last: Option<Instant>,
}

/// The connections of all channels of an endpoint.
pub(super) struct Reconnects {
    channels: Arc<ChannelTable>,
    match_acks: Vec<Arc<MatchAcks>>,
    on_warning: WarningHandler,
    tasks: Vec<Task>,
    awaited: Vec<Awaited>,
    /// Channels with bytes that must be sent again although no call uses their links.
    resending: Vec<Key>,
    /// Channels that do not have their preferred path, and when to try it.
    returns: Vec<(Key, Instant)>,
    losses: BTreeMap<Key, Losses>,
}

impl Reconnects {
    pub(super) fn new(
        channels: Arc<ChannelTable>,
        match_acks: Vec<Arc<MatchAcks>>,
        on_warning: WarningHandler,
    ) -> Reconnects {
        Reconnects {
            channels,
            match_acks,
            on_warning,
            tasks: Vec::new(),
            awaited: Vec::new(),
            resending: Vec::new(),
            returns: Vec::new(),
            losses: BTreeMap::new(),
        }
    }

    /// Whether broken connections to a peer are replaced.
    pub(super) fn is_resumable(&self, peer: u32) -> bool {
        self.channels.is_resumable(peer)
    }

    /// Adds the descriptors that the connector's thread must wait for.
    pub(super) fn add_descriptors<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        for attempt in self.tasks.iter().filter_map(|task| task.attempt.as_ref()) {
            fds.push(PollFd::from_borrowed_fd(attempt.fd(), attempt.interest()));
        }
        fds.extend(self.awaited.iter().map(|one| PollFd::from_borrowed_fd(one.socket.fd(), PollFlags::IN)));
    }

    /// Returns when the next step is due.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let tasks = self.tasks.iter().map(|task| task.until);
        let awaited = self.awaited.iter().map(|one| one.until);
        let returns = self.returns.iter().map(|(_, at)| *at);
        let resending = self.resending.first().map(|_| Instant::now() + Duration::from_millis(1));
        tasks.chain(awaited).chain(returns).chain(resending).min()
    }

    /// Advances all connections as far as possible.
    pub(super) fn progress(&mut self, dialer: &Dialer) {
        for key in self.channels.take_requests() {
            self.start(key, dialer);
        }
        self.progress_awaited(dialer);
        self.progress_resending(dialer);
        self.start_returns(dialer);
        for task in std::mem::take(&mut self.tasks) {
            if let Some(task) = self.advance(task, dialer) {
                self.tasks.push(task);
            }
        }
    }

    /// Starts to make a connection that a channel needs, unless that is under way.
    fn start(&mut self, key: Key, dialer: &Dialer) {
        let Some(channel) = self.channels.channel(key) else { return };
        let phase = channel.lock().phase();
        if phase == Phase::Running || self.awaited.iter().any(|one| one.key == key) {
            return;
        }
        if let Some(task) = self.tasks.iter_mut().find(|task| task.key == key) {
            task.is_return = false;
            return;
        }
        let (is_replacement, now) = (phase == Phase::Stopped, Instant::now());
        if is_replacement {
            self.count_loss(key, now);
        }
        let within = match is_replacement {
            true => dialer.config.peer_timeout,
            false => dialer.config.connect_timeout,
        };
        self.tasks.push(Task {
            key,
            is_return: false,
            is_replacement,
            attempt: None,
            is_started: false,
            routes: self.usable_routes(key, dialer, is_replacement),
            route: None,
            until: now,
            deadline: now + within,
            attempts: 0,
            refusals: 0,
            errors: Vec::new(),
        });
    }

    fn count_loss(&mut self, key: Key, now: Instant) {
        let losses = self.losses.entry(key).or_default();
        let is_recent = losses.last.is_some_and(|last| now - last < LOSS_MEMORY);
        losses.count = if is_recent { losses.count + 1 } else { 0 };
        losses.last = Some(now);
    }

    /// Returns the ways to a peer whose cables are plugged in; the way of a silent connection is the last.
    fn usable_routes(&self, key: Key, dialer: &Dialer, is_replacement: bool) -> VecDeque<Route> {
        let mut routes = dialer.routes.to(key.peer, key.stripe);
        routes.retain(|route| route.device.as_ref().is_none_or(|device| device.is_running()));
        let lost = self.channels.channel(key).and_then(|channel| channel.lock().silent_route());
        if let Some(lost) = lost.filter(|_| is_replacement)
            && let Some(at) = routes.iter().position(|route| *route == lost)
        {
            let last = routes.remove(at).expect("found");
            routes.push_back(last);
        }
        routes
    }

    /// Advances a task; returns `None` once it is done.
    fn advance(&mut self, mut task: Task, dialer: &Dialer) -> Option<Task> {
        if !self.is_needed(&task) {
            self.end_attempt(&mut task);
            return None;
        }
        let now = Instant::now();
        if task.attempt.is_none() {
            if now < task.until {
                return Some(task);
            }
            return self.try_next(task, dialer, now);
        }
        let error = match self.advance_attempt(&mut task, dialer) {
            Ok(Progress::Waits) if now < task.until => return Some(task),
            Ok(Progress::Waits) => "no answer".to_owned(),
            Ok(Progress::Runs) => return None,
            Ok(Progress::Declined) => {
                self.end_attempt(&mut task);
                task.until = now + RETRY_DELAY;
                return Some(task);
            }
            Err(error) => {
                let is_refused =
                    matches!(&error, SecureError::Io(e) if e.kind() == ErrorKind::ConnectionRefused);
                task.refusals += u32::from(is_refused);
                error.to_string()
            }
        };
        if let Some(route) = task.route.clone() {
            task.note_error(route, error);
        }
        let was_started = task.is_started;
        self.end_attempt(&mut task);
        if task.is_return && was_started {
            // The channel is stopped: it now needs a connection, over any path.
            task.is_return = false;
            task.is_replacement = true;
            task.deadline = now + dialer.config.peer_timeout;
            task.routes = self.usable_routes(task.key, dialer, true);
        }
        self.try_next(task, dialer, now)
    }

    /// Describes why no way to the peer works.
    fn describe_errors(&self, task: &Task, dialer: &Dialer) -> String {
        let describe = |route: &Route| {
            let error = task.errors.iter().find(|(other, _)| other == route).map(|(_, error)| error.as_str());
            let is_down = route.device.as_ref().is_some_and(|device| !device.is_running());
            let what = if is_down { "the interface is down" } else { error.unwrap_or("not tried") };
            match &route.device {
                Some(device) => format!("cable {} to {}: {what}", device.name, route.to),
                None => format!("{}: {what}", route.to),
            }
        };
        let all: Vec<String> =
            dialer.routes.to(task.key.peer, task.key.stripe).iter().map(describe).collect();
        if all.is_empty() { "it has no address to connect to".to_owned() } else { all.join("; ") }
    }

    /// Whether the connection is still needed, and not being made by the peer.
    fn is_needed(&self, task: &Task) -> bool {
        let Some(channel) = self.channels.channel(task.key) else { return false };
        let inner = channel.lock();
        let is_awaited = self.awaited.iter().any(|one| one.key == task.key);
        let is_stopped = inner.phase() != Phase::Running;
        !is_awaited && inner.channel.failure().is_none() && (is_stopped || task.is_return)
    }

    /// Drops the attempt.
    fn end_attempt(&self, task: &mut Task) {
        if std::mem::take(&mut task.is_started)
            && let Some(channel) = self.channels.channel(task.key)
        {
            channel.lock().channel.give_up_attempt();
        }
        task.attempt = None;
    }

    /// Starts an attempt over the next path; after the last one, pauses or gives up.
    fn try_next(&mut self, mut task: Task, dialer: &Dialer, now: Instant) -> Option<Task> {
        while let Some(route) = task.routes.pop_front() {
            let channel = self.channels.channel(task.key)?;
            let number = channel.lock().channel.next_attempt();
            task.attempts += 1;
            match dialer.dial(task.key, &route, Some(number)) {
                Ok(attempt) => {
                    task.attempt = Some(attempt);
                    task.route = Some(route);
                    task.until = now + ATTEMPT_TIMEOUT;
                    return Some(task);
                }
                Err(error) => task.note_error(route, error.to_string()),
            }
        }
        if task.is_return {
            self.plan_return(task.key, now);
            return None;
        }
        // The listeners of a process live as long as its endpoint.
        let is_gone = task.attempts > 0 && task.refusals == task.attempts;
        if is_gone || now >= task.deadline {
            self.give_up(&task, is_gone, dialer);
            return None;
        }
        (task.attempts, task.refusals) = (0, 0);
        task.routes = self.usable_routes(task.key, dialer, task.is_replacement);
        task.until = now + RETRY_DELAY;
        Some(task)
    }

    fn give_up(&mut self, task: &Task, is_gone: bool, dialer: &Dialer) {
        let Some(channel) = self.channels.channel(task.key) else { return };
        let within = dialer.config.connect_timeout.as_secs_f64();
        let errors = self.describe_errors(task, dialer);
        let failure = match (task.is_replacement, is_gone) {
            (true, true) => Failure::Closed,
            (true, false) => Failure::Lost(format!(
                "no path to its host has worked for {:.1} s ({errors}); check the cables and the host",
                dialer.config.peer_timeout.as_secs_f64()
            )),
            (false, true) => Failure::Unreachable(format!("connecting to {errors}")),
            (false, false) => Failure::Unreachable(format!(
                "no connection within {within:.1} s ({errors}); is a firewall in between, or another \
                 interface needed (TBCCL_INTERFACE)?"
            )),
        };
        if !is_gone {
            self.channels.connections.probes.forget();
        }
        channel.lock().channel.fail(failure);
        self.channels.wake_links();
    }

    /// Advances an attempt as far as possible.
    fn advance_attempt(&mut self, task: &mut Task, dialer: &Dialer) -> Result<Progress, SecureError> {
        let Some(mut attempt) = task.attempt.take() else { return Ok(Progress::Waits) };
        let Some(channel) = self.channels.channel(task.key).cloned() else { return Ok(Progress::Declined) };
        if !attempt.is_connected()? {
            task.attempt = Some(attempt);
            return Ok(Progress::Waits);
        }
        if !task.is_started {
            task.is_started = true;
            channel.lock().channel.start_attempt();
        }
        let Some((verdict, theirs)) = attempt.progress()? else {
            task.attempt = Some(attempt);
            return Ok(Progress::Waits);
        };
        if verdict != Verdict::Accepted {
            return Ok(Progress::Declined);
        }
        let (stream, ciphers) = attempt.into_parts();
        dialer.configure(&stream)?;
        let socket = self.channels.connections.register(stream, task.key.peer);
        let connection = PendingSocket::new(Arc::clone(&socket), ciphers, self.channels.is_encrypted);
        let send_offset = |connection: &mut PendingSocket, ours| connection.send_offset(ours);
        channel.lock().channel.run_initiated(theirs, connection, send_offset)?;
        task.is_started = false;
        self.has_connected(task.key, &socket, dialer);
        Ok(Progress::Runs)
    }

    /// Answers the peer's attempt to connect.
    pub(super) fn admit(&mut self, caller: Inbound, session: Session, hello: &InitiatorHello) {
        let key = Inbound::key_of(hello);
        let Some(channel) = self.channels.channel(key).cloned() else { return };
        let mut inner = channel.lock();
        let is_ours_first = self.channels.connections.rank < key.peer;
        let nothing = Accepted { received: 0, attempt: 0 };
        let (verdict, positions) = match inner.accept(hello.attempt, is_ours_first) {
            Answer::Accepted(positions) => (Verdict::Accepted, positions),
            Answer::Crossed => (Verdict::Crossed, nothing),
            Answer::Stale => (Verdict::Duplicate, nothing),
        };
        // An error means that the peer is cut off again. It makes another attempt.
        let Ok((stream, ciphers)) = caller.answer_for_channel(session, verdict, positions) else { return };
        if verdict != Verdict::Accepted {
            return;
        }
        let socket = self.channels.connections.register(stream, key.peer);
        inner.channel.await_offset(PendingSocket::new(
            Arc::clone(&socket),
            ciphers,
            self.channels.is_encrypted,
        ));
        self.awaited.retain(|one| one.key != key);
        self.awaited.push(Awaited { key, socket, until: Instant::now() + OFFSET_TIMEOUT });
    }

    fn progress_awaited(&mut self, dialer: &Dialer) {
        for one in std::mem::take(&mut self.awaited) {
            let Some(channel) = self.channels.channel(one.key).cloned() else { continue };
            let (is_running, is_pending) = {
                let mut inner = channel.lock();
                let is_same = inner.channel.pending().is_some_and(|p| Arc::ptr_eq(p.socket(), &one.socket));
                let is_running = is_same && inner.channel.poll_pending();
                (is_running, inner.channel.pending().is_some())
            };
            if is_running {
                self.has_connected(one.key, &one.socket, dialer);
            } else if is_pending && Instant::now() < one.until {
                self.awaited.push(one);
            } else {
                self.start(one.key, dialer);
            }
        }
    }

    fn progress_resending(&mut self, dialer: &Dialer) {
        for key in std::mem::take(&mut self.resending) {
            let Some(channel) = self.channels.channel(key).cloned() else { continue };
            let (is_sent, is_stopped) = {
                let mut inner = channel.lock();
                (inner.channel.resend(), inner.phase() == Phase::Stopped)
            };
            if is_stopped {
                self.start(key, dialer);
            } else if !is_sent {
                self.resending.push(key);
            }
        }
    }

    /// Completes a connection: tells links, and plans the return to the preferred path.
    fn has_connected(&mut self, key: Key, socket: &Socket, dialer: &Dialer) {
        let Some(channel) = self.channels.channel(key).cloned() else { return };
        let routes = dialer.routes.to(key.peer, key.stripe);
        let addresses = socket.addresses().ok();
        let at = routes.iter().position(|route| addresses.is_some_and(|found| route.is_between(found)));
        let route = at.map(|at| routes[at].clone());
        let loss = {
            let mut inner = channel.lock();
            if inner.phase() == Phase::Running {
                self.resending.push(key);
            }
            inner.has_connected(route.clone())
        };
        debug!(target: target::TCP, rank = dialer.routes.rank, "lane {} to rank {} has connected by {}",
            key.lane, key.peer, route.as_ref().map_or_else(String::new, Route::name));
        self.note_path(key, at, &routes, loss);
        self.returns.retain(|(other, _)| *other != key);
        let is_to_return = routes.front().is_some_and(|preferred| preferred.device.is_some());
        if at.is_some_and(|at| at > 0) && is_to_return && dialer.routes.rank < key.peer {
            self.plan_return(key, Instant::now());
        }
        self.channels.wake_links();
        if key.lane == self.channels.connections.lanes {
            self.match_acks[key.peer as usize].flush(&self.channels.connections);
        }
    }
}

/// Progress of an attempt.
enum Progress {
    Waits,
    Runs,
    /// The peer is connecting, too.
    Declined,
}
