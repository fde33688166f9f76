//! The event loop of a rendezvous: who connects, what they say, what they are told, and when they have to go.
//!
//! A turn waits for the system, takes in what came, passes time, and brings what the job has to say. No turn waits for
//! anyone: a connection that says much has its turn again after the others, one that reads nothing keeps its mail.

use super::{
    super::{
        liveness,
        pipe::Filled,
        wire::{FromServer, Hello, frame_of},
    },
    Doors, NoticeBoard,
    doors::Door,
    entrance::{Entrance, GREETING},
    guest::{Guest, Said, Stage},
    job::{Job, Mail, NotAdmitted},
    refusals::{Counts, Refusals},
};
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
const LINGER: Duration = Duration::from_secs(1);

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
pub(super) struct Outside {
    pub(super) commands: Receiver<Command>,
    pub(super) counts: Arc<Counts>,
    pub(super) notice_board: Arc<NoticeBoard>,
}

/// A rendezvous that is served.
#[derive(Debug)]
pub(super) struct Serving {
    pub(super) poll: Poll,
    /// Of the Unix socket.
    address: String,
    /// None once they are closed.
    pub(super) doors: Vec<Door>,
    /// How many there were.
    doors_at_first: usize,
    sharing: Doors,
    /// At which doors somebody may be.
    pub(super) knocking: BTreeSet<usize>,
    /// Nobody is taken in until then.
    pub(super) paused: Option<Instant>,
    pub(super) secret: Option<Secret>,
    pub(super) guests: HashMap<Token, Guest>,
    pub(super) entrance: Entrance,
    /// Which guests have to have come further, and when.
    pub(super) deadlines: BTreeSet<(Instant, Token)>,
    /// Which guests may have something to say, and which have mail.
    pub(super) ready: BTreeSet<Token>,
    has_mail: BTreeSet<Token>,
    /// The connection of each rank.
    tokens: HashMap<u32, Token>,
    pub(super) next_token: usize,
    job: Job,
    refusals: Refusals,
    outside: Outside,
    /// When the connections of ranks of other hosts are looked at next.
    probing: Instant,
    /// Set when the rendezvous is to end: until when guests may hear why.
    closing: Option<Instant>,
}

impl Serving {
    pub(super) fn new(
        (job, sharing): (Job, Doors),
        secret: Option<Secret>,
        (unix, address): (UnixListener, String),
        networks: Vec<TcpListener>,
        outside: Outside,
    ) -> io::Result<(Serving, Waker)> {
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), WAKE)?;
        let doors: Vec<Door> =
            [Door::Unix(unix)].into_iter().chain(networks.into_iter().map(Door::Tcp)).collect();
        for (at, door) in doors.iter().enumerate() {
            let mut source = SourceFd(&door.raw_fd());
            poll.registry().register(&mut source, Token(1 + at), Interest::READABLE)?;
        }
        let now = Instant::now();
        let serving = Serving {
            poll,
            address,
            next_token: 1 + doors.len(),
            doors_at_first: doors.len(),
            sharing,
            knocking: BTreeSet::new(),
            paused: None,
            doors,
            secret,
            guests: HashMap::new(),
            entrance: Entrance::new(job.ranks()),
            deadlines: BTreeSet::new(),
            ready: BTreeSet::new(),
            has_mail: BTreeSet::new(),
            tokens: HashMap::new(),
            job,
            refusals: Refusals::new(now),
            outside,
            probing: now,
            closing: None,
        };
        Ok((serving, waker))
    }

    /// Serves until told to close.
    pub(super) fn run(mut self) {
        let mut events = Events::with_capacity(1024);
        while !self.is_closed() {
            let patience = self.patience();
            match self.poll.poll(&mut events, patience) {
                Ok(()) => {}
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                // Without events there is nothing to serve by; ranks see their connections end.
                Err(_) => break,
            }
            for event in &events {
                match event.token() {
                    WAKE => {}
                    Token(at) if at <= self.doors_at_first => {
                        self.knocking.insert(at - 1);
                    }
                    token => {
                        self.ready.insert(token);
                    }
                }
            }
            self.turn(Instant::now());
        }
        self.refusals.sum_up();
    }

    fn is_closed(&self) -> bool {
        let lingers = || self.guests.values().any(|guest| matches!(guest.stage, Stage::Leaving));
        self.closing.is_some_and(|until| Instant::now() >= until || !lingers())
    }

    /// Until when there is nothing to do unless something happens.
    fn patience(&self) -> Option<Duration> {
        if !self.ready.is_empty() || (!self.knocking.is_empty() && self.paused.is_none()) {
            return Some(Duration::ZERO);
        }
        let has_remote = self.doors_at_first > 1 && !self.guests.is_empty();
        let due = [
            self.paused,
            self.closing,
            self.job.next_deadline(),
            self.refusals.next_deadline(),
            self.deadlines.first().map(|(at, _)| *at),
            has_remote.then_some(self.probing),
        ];
        let next = due.into_iter().flatten().min()?;
        // The system counts in whole milliseconds, and not up.
        Some(next.saturating_duration_since(Instant::now()) + Duration::from_millis(1))
    }

    fn turn(&mut self, now: Instant) {
        self.obey(now);
        self.take_in(now);
        for token in std::mem::take(&mut self.ready) {
            self.attend(token, now);
        }
        if self.sharing == Doors::Shared && self.job.is_complete() {
            self.close_doors();
        }
        self.send_away_the_late(now);
        self.job.tick(now);
        self.job.tell_news();
        self.deliver(now);
        self.look_after_remote(now);
        self.refusals.tick(now);
        self.publish_attendance();
    }

    fn obey(&mut self, now: Instant) {
        while let Ok(command) = self.outside.commands.try_recv() {
            match command {
                Command::Exited { rank, pid, how } => {
                    self.hear_out(rank, now);
                    self.job.report_exit(rank, pid, &how);
                }
                Command::Succeeded { rank, pid } => self.job.report_success(rank, pid),
                Command::Close => {
                    self.job.refuse("the launcher is ending the job");
                    self.closing = Some(now + LINGER);
                }
            }
        }
    }

    /// Reads what a rank has said before it ended: it may have said why. Whoever has its connection now may go on saying
    /// things, so not without end.
    fn hear_out(&mut self, rank: u32, now: Instant) {
        for _ in 0..16 {
            let Some(token) = self.tokens.get(&rank).copied() else { return };
            self.attend(token, now);
            if !self.ready.remove(&token) {
                return;
            }
        }
    }

    fn set_deadline(&mut self, token: Token, guest: &mut Guest, deadline: Option<Instant>) {
        if let Some(before) = guest.deadline {
            self.deadlines.remove(&(before, token));
        }
        guest.deadline = deadline;
        self.deadlines.extend(deadline.map(|at| (at, token)));
    }

    /// Hears what a guest says.
    fn attend(&mut self, token: Token, now: Instant) {
        let Some(mut guest) = self.guests.remove(&token) else { return };
        let filled = guest.fill();
        let heard = self.listen_to(token, &mut guest, now);
        match (heard, filled) {
            (Ok(()), Ok(Filled::More)) => {
                self.ready.insert(token);
            }
            (Ok(()), Ok(Filled::Dry)) => {}
            (Err(why), _) => return self.part(token, guest, Some(&why), now),
            (_, Err(why)) => return self.part(token, guest, Some(&why), now),
            (_, Ok(Filled::Ended)) => return self.part(token, guest, None, now),
        }
        match guest.pipe.flush() {
            Ok(true) if matches!(guest.stage, Stage::Leaving) => guest.pipe.socket().finish(),
            Ok(_) => {}
            Err(why) => return self.part(token, guest, Some(&why), now),
        }
        self.guests.insert(token, guest);
    }

    fn listen_to(&mut self, token: Token, guest: &mut Guest, now: Instant) -> io::Result<()> {
        if matches!(guest.stage, Stage::Stranger) && guest.pipe.is_trusted() {
            self.entrance.leave(token, guest.since);
            guest.stage = Stage::Greeting;
            self.set_deadline(token, guest, Some(now + GREETING));
        }
        while let Some(said) = guest.next()? {
            match said {
                Said::Hello(hello, arena) => self.greet(token, guest, *hello, arena, now),
                Said::OtherVersion(why) => {
                    self.job.refuse_unless_complete(&why);
                    self.turn_away(token, guest, &"a rank", &why, now);
                }
                Said::Word(rank, word, bytes) => {
                    self.job.hear(rank, word, bytes, now).map_err(io::Error::other)?;
                }
            }
        }
        Ok(())
    }

    fn greet(&mut self, token: Token, guest: &mut Guest, hello: Hello, arena: Option<OwnedFd>, now: Instant) {
        if hello.arena && arena.is_none() {
            // Descriptors don't travel over TCP; if the rank is on this host, it can come in another way.
            guest.pipe.send(frame_of(&FromServer::Elsewhere { address: self.address.clone() }));
            return self.see_out(token, guest, now);
        }
        let (rank, size, pid) = (hello.member.rank, hello.size, hello.member.pid);
        let silence = Duration::from_millis(hello.silence_ms);
        match self.job.admit(hello, arena, now) {
            Ok(rank) => {
                guest.stage = Stage::Rank(rank);
                // A socket that can't be told is broken, which reading from it says.
                let _ = guest.pipe.socket().bear_silence(silence);
                self.tokens.insert(rank, token);
                self.set_deadline(token, guest, None);
            }
            Err(NotAdmitted::OtherJob) => {
                guest.pipe.send(frame_of(&FromServer::Busy { job: self.job.name().to_owned() }));
                self.see_out(token, guest, now);
            }
            Err(NotAdmitted::Refused(why)) => {
                let who = format!("rank {rank} of {size} (process {pid}, {})", guest.pipe.socket());
                self.turn_away(token, guest, &who, &why, now);
            }
        }
    }

    /// Tells a guest why it can't be let in, and the owner of the rendezvous as well.
    fn turn_away(
        &mut self,
        token: Token,
        guest: &mut Guest,
        who: &dyn std::fmt::Display,
        why: &str,
        now: Instant,
    ) {
        self.refusals.say(&self.outside.counts.ranks, who, &why, now);
        let absent = self.job.absent().to_vec();
        guest.pipe.send(frame_of(&FromServer::Refused { why: why.to_owned(), absent }));
        self.see_out(token, guest, now);
    }

    /// From now on a guest is not listened to.
    fn see_out(&mut self, token: Token, guest: &mut Guest, now: Instant) {
        guest.stage = Stage::Leaving;
        self.set_deadline(token, guest, Some(now + LINGER));
    }

    /// A connection is over; if there was no reason, its other end closed it.
    fn part(&mut self, token: Token, mut guest: Guest, why: Option<&io::Error>, now: Instant) {
        self.set_deadline(token, &mut guest, None);
        let counts = Arc::clone(&self.outside.counts);
        match guest.stage {
            Stage::Rank(rank) | Stage::Giving(rank, _) => {
                self.tokens.remove(&rank);
                if let Some(why) = why.filter(|why| is_protocol(why)) {
                    let who = format!("rank {rank} ({})", guest.pipe.socket());
                    self.refusals.say(&counts.ranks, &who, why, now);
                }
                self.job.lose(rank, &how_it_ended(why, guest.pipe.socket().silence()), now);
            }
            Stage::Leaving => {}
            Stage::Stranger => {
                self.entrance.leave(token, guest.since);
                let silent =
                    io::Error::other("it closed the connection before it had proved that it has the secret");
                self.refusals.say(&counts.strangers, guest.pipe.socket(), why.unwrap_or(&silent), now);
            }
            Stage::Greeting | Stage::Arena(_) => {
                // Whoever only looks whether we are there says nothing.
                if let Some(why) = why {
                    self.refusals.say(&counts.strangers, guest.pipe.socket(), why, now);
                }
            }
        }
        // Dropping the socket takes it off the list of those that are waited for.
    }

    pub(super) fn send_away(&mut self, token: Token, why: &dyn std::fmt::Display, now: Instant) {
        if let Some(guest) = self.guests.remove(&token) {
            self.part(token, guest, Some(&io::Error::other(why.to_string())), now);
        }
    }

    fn send_away_the_late(&mut self, now: Instant) {
        while let Some((_, token)) = self.deadlines.first().filter(|(at, _)| *at <= now).copied() {
            self.deadlines.pop_first();
            let what = match self.guests.get(&token).map(|guest| &guest.stage) {
                Some(Stage::Stranger) => "it did not prove in time that it has the secret",
                _ => "it did not say in time who it is",
            };
            self.send_away(token, &what, now);
        }
    }

    /// Brings ranks what the job has to say to them.
    fn deliver(&mut self, now: Instant) {
        for mail in self.job.take_mail() {
            let (Mail::Parcel(rank, _) | Mail::End(rank)) = mail;
            let Some(token) = self.tokens.get(&rank).copied() else { continue };
            let Some(mut guest) = self.guests.remove(&token) else { continue };
            match mail {
                Mail::Parcel(_, parcel) => guest.pipe.send(parcel),
                Mail::End(_) => {
                    self.see_out(token, &mut guest, now);
                    self.tokens.remove(&rank);
                }
            }
            self.has_mail.insert(token);
            self.guests.insert(token, guest);
        }
        for token in std::mem::take(&mut self.has_mail) {
            let Some(guest) = self.guests.get_mut(&token) else { continue };
            match guest.pipe.flush() {
                Ok(true) if matches!(guest.stage, Stage::Leaving) => guest.pipe.socket().finish(),
                Ok(_) => {}
                Err(why) => {
                    if let Some(guest) = self.guests.remove(&token) {
                        self.part(token, guest, Some(&why), now);
                    }
                }
            }
        }
    }

    /// Whose host has been silent for too long?
    fn look_after_remote(&mut self, now: Instant) {
        if self.doors_at_first == 1 || now < self.probing {
            return;
        }
        self.probing = now + liveness::PROBING;
        let ranks = self.guests.iter_mut().filter(|(_, guest)| guest.rank().is_some());
        let silent = ranks.filter_map(|(token, guest)| guest.pipe.socket().is_silent().then_some(*token));
        for token in silent.collect::<Vec<_>>() {
            if let Some(guest) = self.guests.remove(&token) {
                self.part(token, guest, Some(&ErrorKind::TimedOut.into()), now);
            }
        }
    }

    fn publish_attendance(&self) {
        let present = self.job.attendance();
        let board = &self.outside.notice_board;
        let mut known = board.attendance.lock().unwrap_or_else(PoisonError::into_inner);
        if *known != present {
            *known = present;
            board.changed.notify_all();
        }
    }
}

/// Did the other end say something that is not ours?
fn is_protocol(why: &io::Error) -> bool {
    matches!(why.kind(), ErrorKind::InvalidData | ErrorKind::PermissionDenied | ErrorKind::Other)
}

/// How a rank whose connection broke has ended, as the rest of a sentence.
fn how_it_ended(why: Option<&io::Error>, silence: Duration) -> String {
    match why {
        None => CLOSED.to_owned(),
        Some(e) if is_protocol(e) => format!("said what no rank says ({e}), and was hung up on"),
        Some(e) => match e.kind() {
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::ConnectionAborted => {
                CLOSED.to_owned()
            }
            ErrorKind::TimedOut => {
                format!("can't be reached any more: its host has not answered for {silence:?}")
            }
            _ => format!("can't be reached any more: {e}"),
        },
    }
}
