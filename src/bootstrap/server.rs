//! The rendezvous of a job on one host, run by the launcher.
//!
//! One thread accepts; each connection has a thread of its own that greets, waits for the others, and then listens
//! for the rank's end. State is shared behind one mutex; a condition variable tells of changes.

use super::wire::{FromRank, FromServer, Hello, MAGIC, Member, PROTOCOL, read_frame, write_frame};
use crate::error::{Error, Result};
use rustix::fd::{AsFd, OwnedFd};
use std::{
    io,
    os::unix::net::{UnixListener, UnixStream},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// How long a connection may take to say who it is.
const GREETING_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a broken connection waits for the launcher to say how the process ended.
const EXIT_NEWS: Duration = Duration::from_millis(100);

/// The rendezvous of one job. Closed when dropped; ranks that wait for others are then refused.
#[derive(Debug)]
pub struct Server {
    address: String,
    shared: Arc<Shared>,
    /// The folder of the socket's file, where it has one; removed when dropped.
    _folder: Option<Folder>,
}

#[derive(Debug)]
struct Shared {
    ranks: u32,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// By rank.
    seats: Vec<Seat>,
    /// What all ranks must agree on, and who said it first.
    options: Option<(u32, std::collections::BTreeMap<String, String>)>,
    /// Why the job cannot start.
    refused: Option<String>,
    closed: bool,
}

#[derive(Debug, Default)]
struct Seat {
    member: Option<Member>,
    arena: Option<Arc<OwnedFd>>,
    /// For notices; set from the Welcome on.
    stream: Option<UnixStream>,
    /// `Some(obstacle)` once the rank has probed.
    probed: Option<Option<String>>,
    gone: Gone,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Gone {
    #[default]
    No,
    Goodbye,
    Died,
}

impl Server {
    /// Opens the rendezvous for a job of `ranks` ranks.
    ///
    /// # Errors
    /// When the system refuses a socket or a thread.
    pub fn start(ranks: u32) -> Result<Server> {
        let (listener, address, folder) =
            listen().map_err(|e| Error::system("opening the rendezvous socket", e))?;
        let state = State {
            seats: (0..ranks).map(|_| Seat::default()).collect(),
            options: None,
            refused: None,
            closed: false,
        };
        let shared = Arc::new(Shared { ranks, state: Mutex::new(state), changed: Condvar::new() });
        let accepting = Arc::clone(&shared);
        thread::Builder::new()
            .name("tbccl-rendezvous".into())
            .spawn(move || accept(&listener, &accepting))
            .map_err(|e| Error::system("starting the rendezvous thread", e))?;
        Ok(Server { address, shared, _folder: folder })
    }

    /// What ranks need to find the rendezvous: the value of `TBCCL_BOOTSTRAP`.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Tells all ranks that a rank's process has ended, and how, as the rest of a sentence: `was killed by SIGKILL`.
    pub fn report_exit(&self, rank: u32, pid: u32, how: &str) {
        let mut state = self.shared.lock();
        if state.seats.get(rank as usize).is_none_or(|seat| seat.gone != Gone::No) {
            return;
        }
        if state.started() {
            state.announce_death(rank, how);
        } else {
            let why = format!("rank {rank} (process {pid}) {how} before all ranks had joined");
            state.refused.get_or_insert(why);
        }
        self.shared.changed.notify_all();
    }
}

impl Server {
    /// Tells ranks that wait for this one to join that it has ended without, with status 0. Once it has joined, its own
    /// goodbye counts.
    pub fn report_success(&self, rank: u32, pid: u32) {
        let mut state = self.shared.lock();
        if state.seats.get(rank as usize).is_some_and(|seat| seat.member.is_none()) {
            let why = format!("rank {rank} (process {pid}) ended with status 0 without joining the job");
            state.refused.get_or_insert(why);
            self.shared.changed.notify_all();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.changed.notify_all();
        // Wakes the accepting thread, which then sees that it is to end.
        drop(connect(&self.address));
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Turns a rank of ours away, and with it the job if it has not begun.
    fn refuse_unless_started(&self, why: String) -> Refusal {
        let mut state = self.lock();
        if !state.complete() {
            state.refused.get_or_insert_with(|| why.clone());
        }
        self.changed.notify_all();
        Refusal::Say(why)
    }

    /// Waits until `ready` says so, the job is refused, or the deadline has passed.
    fn wait_for(
        &self,
        deadline: Instant,
        ready: impl Fn(&State) -> bool,
    ) -> Result<MutexGuard<'_, State>, String> {
        let mut state = self.lock();
        loop {
            if let Some(why) = &state.refused {
                return Err(why.clone());
            }
            if ready(&state) {
                return Ok(state);
            }
            if state.closed {
                return Err("the launcher is ending the job".into());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                // It is over for all: a rank that joins later would wait for this one in vain.
                let why = state.overdue();
                state.refused = Some(why.clone());
                self.changed.notify_all();
                return Err(why);
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl State {
    fn missing(&self) -> impl Iterator<Item = usize> + '_ {
        self.seats.iter().enumerate().filter(|(_, seat)| seat.member.is_none()).map(|(r, _)| r)
    }

    /// Whom everyone waited for in vain, as a sentence.
    fn overdue(&self) -> String {
        let name = |ranks: Vec<usize>| ranks.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
        let (who, what) = if self.complete() {
            let silent = self.seats.iter().enumerate().filter(|(_, seat)| seat.probed.is_none());
            (name(silent.map(|(r, _)| r).collect()), "joined, but have not started")
        } else {
            (name(self.missing().collect()), "not joined")
        };
        format!("these ranks have {what} in time: {who}; start them, or allow more time with TBCCL_TIMEOUT")
    }

    fn complete(&self) -> bool {
        self.missing().next().is_none()
    }

    fn started(&self) -> bool {
        self.seats.iter().all(|seat| seat.probed.is_some())
    }

    /// Takes a rank in, or says why not.
    fn admit(&mut self, ranks: u32, hello: &Hello, arena: OwnedFd) -> Result<(), String> {
        if hello.magic != MAGIC {
            return Err("this is not a tbccl rank".into());
        }
        let rank = hello.member.rank;
        if hello.size != ranks || rank >= ranks {
            let why = format!("rank {rank} of {} cannot join a job of {ranks} ranks", hello.size);
            if !self.complete() {
                self.refused.get_or_insert(why.clone());
            }
            return Err(why);
        }
        if let Some((first, options)) = &self.options
            && let Some(why) = difference(*first, options, rank, &hello.options)
        {
            self.refused.get_or_insert(why.clone());
            return Err(why);
        }
        let seat = &mut self.seats[rank as usize];
        if let Some(taken) = &seat.member {
            return Err(format!("rank {rank} has already joined (process {})", taken.pid));
        }
        seat.member = Some(hello.member.clone());
        seat.arena = Some(Arc::new(arena));
        self.options.get_or_insert_with(|| (rank, hello.options.clone()));
        Ok(())
    }

    fn announce_death(&mut self, rank: u32, how: &str) {
        self.seats[rank as usize].gone = Gone::Died;
        let notice = FromServer::Died { rank, how: how.to_owned() };
        for (_, seat) in self.seats.iter_mut().enumerate().filter(|(r, _)| *r != rank as usize) {
            if let Some(stream) = &mut seat.stream {
                // A rank that cannot be told is gone itself.
                let _ = write_frame(stream, &notice);
            }
        }
    }
}

/// The first option that two ranks set differently, as a sentence.
fn difference(
    first: u32,
    ours: &std::collections::BTreeMap<String, String>,
    rank: u32,
    theirs: &std::collections::BTreeMap<String, String>,
) -> Option<String> {
    let keys = ours.keys().chain(theirs.keys());
    let mut different = keys.filter(|key| ours.get(*key) != theirs.get(*key));
    let show = |value: Option<&String>| value.map_or_else(|| "unknown".to_owned(), |v| format!("`{v}`"));
    different.next().map(|key| {
        format!(
            "{key} must be equal on all ranks: it is {} on rank {first} and {} on rank {rank}",
            show(ours.get(key)),
            show(theirs.get(key))
        )
    })
}

fn accept(listener: &UnixListener, shared: &Arc<Shared>) {
    for stream in listener.incoming() {
        if shared.lock().closed {
            return;
        }
        let Ok(stream) = stream else {
            // Out of descriptors, most likely: others may be closed meanwhile.
            thread::sleep(Duration::from_millis(10));
            continue;
        };
        if !same_user(&stream) {
            continue;
        }
        let shared = Arc::clone(shared);
        // A connection that gets no thread is closed, which the rank reports.
        let _ = thread::Builder::new().name("tbccl-rank".into()).spawn(move || serve(stream, &shared));
    }
}

/// One rank, from its greeting to its end.
fn serve(mut stream: UnixStream, shared: &Shared) {
    let rank = match greet(&mut stream, shared) {
        Ok(rank) => rank,
        Err(Refusal::Say(why)) => {
            let _ = write_frame(&mut stream, &FromServer::Refused { why });
            return;
        }
        Err(Refusal::Broken(rank)) => {
            if let Some(rank) = rank {
                connection_broke(rank, shared);
            }
            return;
        }
    };
    match read_frame(&mut stream) {
        Ok(FromRank::Goodbye) => shared.lock().seats[rank as usize].gone = Gone::Goodbye,
        Ok(FromRank::Probed { .. }) | Err(_) => connection_broke(rank, shared),
    }
}

/// A connection ended without a goodbye.
fn connection_broke(rank: u32, shared: &Shared) {
    thread::sleep(EXIT_NEWS);
    let mut state = shared.lock();
    if state.seats[rank as usize].gone == Gone::No {
        let how = "ended, or closed its connection to the launcher, without a word";
        if state.started() {
            state.announce_death(rank, how);
        } else {
            state.refused.get_or_insert(format!("rank {rank} {how} before all ranks had joined"));
        }
        shared.changed.notify_all();
    }
}

enum Refusal {
    /// The rank is told why.
    Say(String),
    /// The connection broke; the rank, if it had said who it is.
    Broken(Option<u32>),
}

fn greet(stream: &mut UnixStream, shared: &Shared) -> Result<u32, Refusal> {
    let broken = |_: io::Error| Refusal::Broken(None);
    stream.set_read_timeout(Some(GREETING_TIMEOUT)).map_err(broken)?;
    let text: serde_json::Value = read_frame(stream).map_err(broken)?;
    // Another version may greet with other words.
    let theirs = text.get("protocol").and_then(serde_json::Value::as_u64);
    if text.get("magic").is_some_and(|magic| magic == MAGIC) && theirs != Some(PROTOCOL.into()) {
        let theirs = theirs.map_or_else(|| "unknown".to_owned(), |p| p.to_string());
        let why = format!(
            "a rank speaks protocol {theirs}, the launcher {PROTOCOL}: use the same version of tbccl everywhere"
        );
        return Err(shared.refuse_unless_started(why));
    }
    let hello: Hello = serde_json::from_value(text).map_err(|e| broken(e.into()))?;
    let arena = transport::driver::shm::receive_descriptor(stream.as_fd()).map_err(|e| broken(e.into()))?;
    let rank = hello.member.rank;
    let lost = move |_: io::Error| Refusal::Broken(Some(rank));
    let admitted = shared.lock().admit(shared.ranks, &hello, arena);
    shared.changed.notify_all();
    admitted.map_err(Refusal::Say)?;
    let deadline = Instant::now() + Duration::from_millis(hello.patience_ms);
    welcome(stream, shared, deadline, rank)?;
    stream
        .set_read_timeout(Some(Duration::from_millis(hello.patience_ms).max(GREETING_TIMEOUT)))
        .map_err(lost)?;
    let FromRank::Probed { obstacle } = read_frame(stream).map_err(lost)? else {
        return Err(Refusal::Broken(Some(rank)));
    };
    shared.lock().seats[rank as usize].probed = Some(obstacle);
    shared.changed.notify_all();
    let mut state = shared.wait_for(deadline, State::started).map_err(Refusal::Say)?;
    // Everyone has mapped everyone's memory; it is to end with the ranks and not with us.
    state.seats.iter_mut().for_each(|seat| seat.arena = None);
    let obstacle = state.seats.iter().find_map(|seat| seat.probed.clone().flatten());
    write_frame(stream, &FromServer::Go { obstacle }).map_err(lost)?;
    drop(state);
    stream.set_read_timeout(None).map_err(lost)?;
    Ok(rank)
}

/// Waits for everyone, then tells the rank of them.
fn welcome(stream: &mut UnixStream, shared: &Shared, deadline: Instant, rank: u32) -> Result<(), Refusal> {
    let (members, arenas) = {
        let mut state = shared.wait_for(deadline, State::complete).map_err(Refusal::Say)?;
        let notices = stream.try_clone().map_err(|_| Refusal::Broken(Some(rank)))?;
        // A rank that does not read its notices must not hold up the others.
        let _ = notices.set_write_timeout(Some(Duration::from_secs(1)));
        state.seats[rank as usize].stream = Some(notices);
        let members: Vec<Member> = state.seats.iter().filter_map(|seat| seat.member.clone()).collect();
        let arenas: Vec<Arc<OwnedFd>> = state.seats.iter().filter_map(|seat| seat.arena.clone()).collect();
        (members, arenas)
    };
    let lost = |_| Refusal::Broken(Some(rank));
    write_frame(stream, &FromServer::Welcome { members }).map_err(lost)?;
    for arena in &arenas {
        transport::driver::shm::send_descriptor(stream.as_fd(), arena.as_fd()).map_err(|e| lost(e.into()))?;
    }
    Ok(())
}

fn same_user(stream: &UnixStream) -> bool {
    #[cfg(target_os = "linux")]
    {
        rustix::net::sockopt::socket_peercred(stream).is_ok_and(|peer| peer.uid == rustix::process::geteuid())
    }
    #[cfg(not(target_os = "linux"))]
    {
        // The socket's folder can be entered by its owner only.
        let _ = stream;
        true
    }
}

/// A folder that only its owner can enter, removed when dropped.
#[derive(Debug)]
struct Folder(std::path::PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn random_name() -> io::Result<String> {
    let mut bytes = [0u8; 16];
    getrandom(&mut bytes)?;
    Ok(format!("tbccl-{:032x}", u128::from_le_bytes(bytes)))
}

#[cfg(target_os = "linux")]
fn getrandom(bytes: &mut [u8]) -> io::Result<()> {
    let got = rustix::rand::getrandom(bytes, rustix::rand::GetRandomFlags::empty())?;
    if got == 16 { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

#[cfg(not(target_os = "linux"))]
fn getrandom(bytes: &mut [u8]) -> io::Result<()> {
    io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, bytes)
}

#[cfg(target_os = "linux")]
fn listen() -> io::Result<(UnixListener, String, Option<Folder>)> {
    use std::os::linux::net::SocketAddrExt;
    let name = random_name()?;
    let address = std::os::unix::net::SocketAddr::from_abstract_name(&name)?;
    Ok((UnixListener::bind_addr(&address)?, format!("unix-abstract:{name}"), None))
}

#[cfg(not(target_os = "linux"))]
fn listen() -> io::Result<(UnixListener, String, Option<Folder>)> {
    use std::os::unix::fs::DirBuilderExt;
    let folder = std::env::temp_dir().join(random_name()?);
    std::fs::DirBuilder::new().mode(0o700).create(&folder)?;
    let folder = Folder(folder);
    let path = folder.0.join("s");
    Ok((UnixListener::bind(&path)?, format!("unix:{}", path.display()), Some(folder)))
}

/// Connects to a rendezvous.
pub(super) fn connect(address: &str) -> io::Result<UnixStream> {
    #[cfg(target_os = "linux")]
    if let Some(name) = address.strip_prefix("unix-abstract:") {
        use std::os::linux::net::SocketAddrExt;
        return UnixStream::connect_addr(&std::os::unix::net::SocketAddr::from_abstract_name(name)?);
    }
    match address.strip_prefix("unix:") {
        Some(path) => UnixStream::connect(path),
        None => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("`{address}` is not a rendezvous address"),
        )),
    }
}
