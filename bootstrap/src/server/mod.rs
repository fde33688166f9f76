//! Rendezvous server of a job: in the launcher, in rank 0's process, or in a process of its own.
//!
//! One thread serves all connections from an event loop, so a thousand ranks need a thousand sockets and no
//! further threads. Ranks of the same host and user connect over a Unix socket; others over TCP, if it is
//! opened. Where the job has a secret, all of them prove that they have it.
//!
//! | module | purpose |
//! |---|---|
//! | `listen` | listening sockets |
//! | `event_loop` | thread that accepts, reads, writes and enforces deadlines |
//! | `connection` | stages and input of one connection |
//! | `job` | protocol state of the ranks; knows no sockets |
//! | `rejections` | counters and log lines of refused connections |
//! | `in_memory` | the same without an event loop, for tests |

mod connection;
mod event_loop;
#[cfg(any(test, feature = "fuzzing"))]
mod in_memory;
mod job;
mod listen;
mod rejections;

#[cfg(any(test, feature = "fuzzing"))]
pub(super) use in_memory::InMemoryServer;
pub(super) use listen::Sockets;

use super::{
    frame_stream::FrameStream,
    interfaces::our_addresses,
    record_layer::RecordLayer,
    socket::Socket,
    unix::{Folder, listen_for_inquiries, local_address},
};
use crate::error::{Error, Result};
use event_loop::{Command, EventLoop};
use job::Job;
use mio::Waker;
use rejections::RejectionCounters;
use std::{
    io,
    net::SocketAddr,
    os::unix::net::UnixStream,
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::Ordering::Relaxed,
        mpsc::{self, Sender},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};
use transport::{forks::Origin, secure::Secret};

/// Size of a job, and where its rendezvous listens.
#[derive(Clone, Debug)]
pub struct ServerSpec {
    /// Number of ranks; 0 lets the first rank set it.
    ranks: u32,
    /// TCP addresses to listen on; port 0 lets the system choose. Empty for a job on one host.
    listen: Vec<SocketAddr>,
    /// Secret that ranks must have. Required if `listen` is not empty.
    secret: Option<Secret>,
    /// Whether a launcher reports how the ranks' processes end.
    has_exit_reports: bool,
}

impl ServerSpec {
    /// Returns the spec of a job on this host, reached by Unix socket only. Without a secret all processes of
    /// this user can join.
    #[must_use]
    pub fn local(ranks: u32, secret: Option<Secret>) -> ServerSpec {
        ServerSpec { ranks, listen: Vec::new(), secret, has_exit_reports: false }
    }

    /// Returns the spec of a job whose ranks may be on other hosts.
    #[must_use]
    pub fn network(ranks: u32, listen: Vec<SocketAddr>, secret: Secret) -> ServerSpec {
        ServerSpec { ranks, listen, secret: Some(secret), has_exit_reports: false }
    }

    /// Returns the spec for a launcher that calls [`Server::report_exit`] and [`Server::report_success`] for
    /// each process that it has started. A connection that is closed without a goodbye waits up to a second
    /// for the report, so that the error says how the process ended.
    #[must_use]
    pub fn with_exit_reports(self) -> ServerSpec {
        ServerSpec { has_exit_reports: true, ..self }
    }
}

/// A job that meets at sockets which other jobs may use before and after it.
#[derive(Clone, Debug)]
pub(crate) struct PendingGroup {
    /// Name of the job: the same for all of its ranks, and different from other jobs at these sockets.
    pub job: String,
    /// Display label of each rank, by rank. Their number is the number of ranks.
    pub labels: Vec<String>,
    /// The rank whose process serves it.
    pub host: u32,
    /// Secret that ranks must have.
    pub secret: Option<Secret>,
}

/// Counts of rejected connections since a rendezvous was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RejectionCounts {
    /// Connections that did not prove in time that they belong to the job.
    pub strangers: u64,
    /// Ranks that were refused or violated the protocol.
    pub ranks: u64,
}

/// Progress of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobStatus {
    /// Number of ranks that have joined.
    pub joined: u32,
    /// Number of ranks that have joined and departed.
    pub gone: u32,
    /// Number of ranks that have died, of those departed.
    pub died: u32,
    /// Whether no rank is expected or served any more.
    pub is_over: bool,
    /// Reason why the job could not start.
    pub refused: Option<String>,
}

/// Whether other jobs use the same listening sockets once all ranks have joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListenerUse {
    /// No. A rank that comes late is told that the job is complete.
    Exclusive,
    /// Yes. The sockets are released before any rank learns that all have joined.
    Shared,
}

/// Rendezvous server of one job. Dropping it closes the server and refuses ranks that still wait, except in a
/// forked child, where the server is still the parent's.
#[derive(Debug)]
pub struct Server {
    name: u128,
    address: String,
    addresses: Vec<SocketAddr>,
    secret: Option<Secret>,
    commands: Sender<Command>,
    waker: Arc<Waker>,
    counts: Arc<RejectionCounters>,
    status_cell: Arc<StatusCell>,
    thread: Option<JoinHandle<()>>,
    /// Reason for which the job ends with the server, for ranks that wait to join.
    closing: Option<String>,
    origin: Origin,
    /// Folder of the Unix socket's file, if it has one. Removed with the last owner.
    _folder: Option<Arc<Folder>>,
    /// Folder of the file of the socket for questions, if it has one.
    _inquiry_folder: Option<Folder>,
}

/// The way to a server from its own process: connections that need no listener and no handshake, since
/// nothing leaves the process.
#[derive(Clone, Debug)]
pub struct OwnServer {
    commands: Sender<Command>,
    waker: Arc<Waker>,
}

impl OwnServer {
    /// Connects to the server.
    pub(super) fn connect(&self) -> io::Result<FrameStream> {
        let (ours, theirs) = UnixStream::pair()?;
        self.commands.send(Command::Adopt(theirs)).map_err(io::Error::other)?;
        self.waker.wake()?;
        Ok(FrameStream::new(Socket::unix(ours)?, RecordLayer::Open))
    }
}

/// Cell in which the event loop publishes the job's progress.
#[derive(Debug, Default)]
struct StatusCell {
    status: Mutex<JobStatus>,
    changed: Condvar,
}

impl Server {
    /// Starts the rendezvous of a job.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for addresses without a secret; [`Error::Rendezvous`] if an address cannot
    /// be listened on; [`Error::System`] if the system refuses a socket or a thread.
    pub fn start(spec: &ServerSpec) -> Result<Server> {
        if !spec.listen.is_empty() && spec.secret.is_none() {
            return Err(Error::InvalidArgument("a rendezvous over TCP requires a secret".into()));
        }
        let sockets = Sockets::open(&spec.listen)?;
        let mut job = Job::new(spec.ranks);
        job.set_exit_reports(spec.has_exit_reports);
        Server::over(sockets, (job, ListenerUse::Exclusive), spec.secret.clone())
    }

    /// Starts the rendezvous of a job on this host, with a socket name that its ranks derive on their own.
    ///
    /// # Errors
    /// [`ErrorKind::AddrInUse`] in an [`Error::System`] if another job uses the name.
    ///
    /// [`ErrorKind::AddrInUse`]: std::io::ErrorKind::AddrInUse
    pub fn start_with_name(ranks: u32, name: u128, secret: Option<Secret>) -> Result<Server> {
        Server::over(Sockets::open_with_name(name)?, (Job::new(ranks), ListenerUse::Exclusive), secret)
    }

    /// Serves a job at sockets that are already open. Once all ranks have joined, another server may use
    /// them.
    pub(super) fn start_group(sockets: Sockets, group: PendingGroup) -> Result<Server> {
        let PendingGroup { job, labels, host, secret } = group;
        Server::over(sockets, (Job::named(job, labels, host), ListenerUse::Shared), secret)
    }

    fn over(
        sockets: Sockets,
        (job, listener_use): (Job, ListenerUse),
        secret: Option<Secret>,
    ) -> Result<Server> {
        let refused = |what: &'static str| move |e| Error::system(what, e);
        let addresses = sockets.addresses()?;
        let Sockets { unix, name, networks, folder } = sockets;
        let address = local_address(name);
        let (commands, inbox) = mpsc::channel();
        let (counts, status_cell) = (Arc::<RejectionCounters>::default(), Arc::<StatusCell>::default());
        let shared = event_loop::Shared {
            commands: inbox,
            counts: Arc::clone(&counts),
            status_cell: Arc::clone(&status_cell),
        };
        // Without it the job goes on, but `tbccl why` does not find it.
        let (inquiries, inquiry_folder) = listen_for_inquiries().ok().unzip();
        let (event_loop, waker) = EventLoop::new(
            (job, listener_use),
            secret.clone(),
            (unix, address.clone()),
            networks,
            inquiries,
            shared,
        )
        .map_err(refused("preparing to wait for ranks"))?;
        let thread = thread::Builder::new()
            .name("tbccl-rendezvous".into())
            .spawn(move || event_loop.run())
            .map_err(|e| Error::system("starting the rendezvous thread", e))?;
        let thread = Some(thread);
        Ok(Server {
            name,
            address,
            addresses,
            secret,
            commands,
            waker: Arc::new(waker),
            counts,
            status_cell,
            thread,
            closing: None,
            origin: Origin::here(),
            _folder: folder,
            _inquiry_folder: inquiry_folder.flatten(),
        })
    }

    /// Returns the address for ranks of this host: a value of `TBCCL_BOOTSTRAP`.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the way to this server for a rank of this process.
    #[must_use]
    pub fn own(&self) -> OwnServer {
        OwnServer { commands: self.commands.clone(), waker: Arc::clone(&self.waker) }
    }

    /// Returns the secret that ranks must have, if the job has one.
    #[must_use]
    pub fn secret(&self) -> Option<&Secret> {
        self.secret.as_ref()
    }

    /// Returns the bound TCP addresses, in the order of `listen`, with the ports that the system chose.
    ///
    /// They may be unspecified addresses, which other hosts cannot connect to; see
    /// [`Server::bootstrap_addresses`].
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Returns the name of the Unix socket.
    pub(super) fn name(&self) -> u128 {
        self.name
    }

    /// Returns all addresses of the rendezvous, as far as this host knows them, each as in `TBCCL_BOOTSTRAP`.
    #[must_use]
    pub fn bootstrap_addresses(&self) -> Vec<String> {
        let mut ways = vec![self.address.clone()];
        for bound in &self.addresses {
            let hosts = match bound.ip() {
                ip if !ip.is_unspecified() => vec![ip],
                ip => our_addresses().into_iter().filter(|ours| ours.is_ipv4() == ip.is_ipv4()).collect(),
            };
            ways.extend(hosts.into_iter().map(|ip| format!("tcp://{}", SocketAddr::new(ip, bound.port()))));
        }
        ways
    }

    /// Returns the counts of rejected connections.
    #[must_use]
    pub fn rejections(&self) -> RejectionCounts {
        RejectionCounts {
            strangers: self.counts.strangers.load(Relaxed),
            ranks: self.counts.ranks.load(Relaxed),
        }
    }

    /// Reports to all ranks that a rank's process has ended. `how` is the rest of a sentence: `was killed by
    /// SIGKILL`.
    pub fn report_exit(&self, rank: u32, pid: u32, how: &str) {
        self.tell(Command::Exited { rank, pid, how: how.to_owned() });
    }

    /// Reports that a rank's process ended with status 0. Ranks that wait for it to join are told; after
    /// joining, only the rank's own goodbye counts.
    pub fn report_success(&self, rank: u32, pid: u32) {
        self.tell(Command::Succeeded { rank, pid });
    }

    /// Waits until the job is over or `enough` returns true, for at most `timeout`. Returns the progress.
    pub fn wait_until(&self, enough: impl Fn(&JobStatus) -> bool, timeout: Duration) -> JobStatus {
        let deadline = Instant::now().checked_add(timeout);
        let mut status = self.status_cell.status.lock().unwrap_or_else(PoisonError::into_inner);
        while !status.is_over && !enough(&status) {
            let left = deadline.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                break;
            }
            let waited = self.status_cell.changed.wait_timeout(status, left.min(Duration::from_secs(3600)));
            status = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        status.clone()
    }

    /// Ends the job for this reason, which ranks that wait to join are told.
    pub(super) fn close_because(mut self, why: &str) {
        self.closing = Some(why.to_owned());
    }

    fn tell(&self, command: Command) {
        // A thread that has ended serves no ranks.
        let _ = self.commands.send(command);
        let _ = self.waker.wake();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !self.origin.is_here() {
            // The thread does not exist here, so its handle can't be used.
            std::mem::forget(self.thread.take());
            return;
        }
        let why = self.closing.take();
        self.tell(Command::Close { why });
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
