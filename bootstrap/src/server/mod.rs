//! The rendezvous of a job: in the launcher, in rank 0's process, or in one of its own.
//!
//! One thread serves all connections from an event loop ([`serving`]), so that a thousand ranks cost a thousand sockets
//! and no threads. What ranks say is understood by [`job`], which knows no sockets; who may become a rank is decided by
//! [`entrance`], before anything that they say is looked at.
//!
//! Ranks of this host and user come over a Unix socket; others over TCP, where it is opened, with the job's secret.

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
    interfaces::our_addresses,
    unix::{Folder, local_address},
};
use crate::error::{Error, Result};
use event_loop::{Command, EventLoop};
use job::Job;
use mio::Waker;
use rejections::RejectionCounters;
use std::{
    net::SocketAddr,
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::Ordering::Relaxed,
        mpsc::{self, Sender},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};
use transport::secure::Secret;

/// What a rendezvous is for, and where it is reached.
#[derive(Clone, Debug)]
pub struct ServerSpec {
    /// How many ranks the job has; 0 when the first rank that comes is to say so.
    pub ranks: u32,
    /// Where ranks of other hosts connect, over TCP; port 0 lets the system choose. None for a job on one host.
    pub listen: Vec<SocketAddr>,
    /// What ranks that come over TCP must know. Needed where `listen` is not empty.
    pub secret: Option<Secret>,
}

impl ServerSpec {
    /// For a job on this host, reached by Unix socket only.
    #[must_use]
    pub fn local(ranks: u32) -> ServerSpec {
        ServerSpec { ranks, listen: Vec::new(), secret: None }
    }

    /// For a job whose ranks may be on other hosts, and know the secret.
    #[must_use]
    pub fn network(ranks: u32, listen: Vec<SocketAddr>, secret: Secret) -> ServerSpec {
        ServerSpec { ranks, listen, secret: Some(secret) }
    }
}

/// A job that meets at sockets which other jobs may use before it and after it.
#[derive(Clone, Debug)]
pub(crate) struct PendingGroup {
    /// What it is called; the same for all of its ranks, and another one than that of others who meet there.
    pub job: String,
    /// By rank: what people call it. There are so many ranks.
    pub labels: Vec<String>,
    /// What ranks that come over TCP must know.
    pub secret: Option<Secret>,
}

/// Who was turned away since a rendezvous was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RejectionCounts {
    /// Connections that did not prove in time that they belong to the job.
    pub strangers: u64,
    /// Ranks that could not be let in, or that said what no rank says.
    pub ranks: u64,
}

/// How far a job has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobStatus {
    /// Ranks that have joined.
    pub joined: u32,
    /// Ranks that have joined and gone.
    pub gone: u32,
    /// Of those that have gone: ranks that have died.
    pub died: u32,
    /// Nobody is expected or served any more.
    pub is_over: bool,
    /// Why the job could not start.
    pub refused: Option<String>,
}

/// May ranks of other jobs come to the same doors once all are in?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListenerUse {
    /// No: whoever comes late is told that the job is complete.
    Exclusive,
    /// Yes: they are closed here before any rank knows that all are in.
    Shared,
}

/// The rendezvous of one job. Closed when dropped; ranks that wait for others are then refused.
#[derive(Debug)]
pub struct Server {
    name: u128,
    address: String,
    addresses: Vec<SocketAddr>,
    commands: Sender<Command>,
    waker: Waker,
    counts: Arc<RejectionCounters>,
    status_cell: Arc<StatusCell>,
    thread: Option<JoinHandle<()>>,
    /// The folder of the socket's file, where it has one; removed with the last that holds it.
    _folder: Option<Arc<Folder>>,
}

/// Where the serving thread says how far the job has come.
#[derive(Debug, Default)]
struct StatusCell {
    status: Mutex<JobStatus>,
    changed: Condvar,
}

impl Server {
    /// Opens the rendezvous of a job.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for addresses without a secret; [`Error::Rendezvous`] when an address can't be
    /// listened on; others when the system refuses a socket or a thread.
    pub fn start(spec: &ServerSpec) -> Result<Server> {
        if !spec.listen.is_empty() && spec.secret.is_none() {
            return Err(Error::InvalidArgument("a rendezvous over TCP needs a secret".into()));
        }
        let sockets = Sockets::open(&spec.listen)?;
        Server::over(sockets, (Job::new(spec.ranks), ListenerUse::Exclusive), spec.secret.clone())
    }

    /// Opens the rendezvous of a job of this host under a name that its ranks know beforehand.
    ///
    /// # Errors
    /// [`ErrorKind::AddrInUse`] in an [`Error::System`] when another job meets there.
    ///
    /// [`ErrorKind::AddrInUse`]: std::io::ErrorKind::AddrInUse
    pub fn start_with_name(ranks: u32, name: u128) -> Result<Server> {
        Server::over(Sockets::open_by_name(name)?, (Job::new(ranks), ListenerUse::Exclusive), None)
    }

    /// Serves a job at sockets that are open already. From when all ranks are in, others may serve them.
    pub(super) fn start_group(sockets: Sockets, group: PendingGroup) -> Result<Server> {
        let PendingGroup { job, labels, secret } = group;
        Server::over(sockets, (Job::of(job, labels), ListenerUse::Shared), secret)
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
        let (event_loop, waker) =
            EventLoop::new((job, listener_use), secret, (unix, address.clone()), networks, shared)
                .map_err(refused("preparing to wait for ranks"))?;
        let thread = thread::Builder::new()
            .name("tbccl-rendezvous".into())
            .spawn(move || event_loop.run())
            .map_err(|e| Error::system("starting the rendezvous thread", e))?;
        let thread = Some(thread);
        Ok(Server { name, address, addresses, commands, waker, counts, status_cell, thread, _folder: folder })
    }

    /// What ranks of this host need to find the rendezvous: a value of `TBCCL_BOOTSTRAP`.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Where it listens over TCP, in the order they were asked for, with the ports that the system chose. By which
    /// name or address other hosts reach these is not known here.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// By what its Unix socket is known.
    pub(super) fn name(&self) -> u128 {
        self.name
    }

    /// All ways to it, as far as this host knows how others reach it, each as in `TBCCL_BOOTSTRAP`.
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

    /// Who was turned away so far.
    #[must_use]
    pub fn rejections(&self) -> RejectionCounts {
        RejectionCounts {
            strangers: self.counts.strangers.load(Relaxed),
            ranks: self.counts.ranks.load(Relaxed),
        }
    }

    /// Tells all ranks that a rank's process has ended, and how, as the rest of a sentence: `was killed by SIGKILL`.
    pub fn report_exit(&self, rank: u32, pid: u32, how: &str) {
        self.tell(Command::Exited { rank, pid, how: how.to_owned() });
    }

    /// Tells ranks that wait for this one to join that it has ended without, with status 0. Once it has joined, its own
    /// goodbye counts.
    pub fn report_success(&self, rank: u32, pid: u32) {
        self.tell(Command::Succeeded { rank, pid });
    }

    /// Waits until the job is over, or has otherwise come to `enough`, for so long at most. Says how far it has come.
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

    fn tell(&self, command: Command) {
        // A thread that has ended has nobody left to tell.
        let _ = self.commands.send(command);
        let _ = self.waker.wake();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.tell(Command::Close);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
