//! Who is where on the way through a job, and who is told what.
//!
//! A [`Job`] takes what ranks say and what happens to them, and leaves mail for ranks; it reads no socket and no clock.
//! What ranks say is checked here: a word that is out of turn is an error, after which the caller hangs up.

use super::{
    super::{
        pipe::Parcel,
        wire::{FromRank, FromServer, Hello, MAGIC, Member, frame_of},
    },
    Attendance,
    boards::Boards,
    sentences::{difference, sentence},
};
use rustix::fd::OwnedFd;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};
use topology::MAX_RANKS;

/// The longest patience that counts. A rank that would wait longer waits for as long.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);

/// The longest name of a host, in bytes.
const HOST_NAME: usize = 255;

/// The longest list of addresses at which a rank is met later on, in bytes.
const MUSTER: usize = 2000;

/// What is to be brought to a rank.
#[derive(Debug)]
pub(super) enum Mail {
    /// Something to send.
    Parcel(u32, Parcel),
    /// Hang up once all has been sent.
    End(u32),
}

/// A job from the first greeting to the last goodbye.
#[derive(Debug)]
pub(super) struct Job {
    /// What it is called, where several meet at the same place.
    name: String,
    /// By rank: what people call it, where that is not its number.
    titles: Vec<String>,
    /// How many there are; 0 until the first one says.
    pub(super) ranks: u32,
    /// By rank.
    pub(super) seats: Vec<Seat>,
    /// What all ranks must agree on, and who said it first.
    options: Option<(u32, BTreeMap<String, String>)>,
    /// Why the job cannot start.
    pub(super) refused: Option<String>,
    /// For want of which ranks, if it is for that.
    absent: Vec<u32>,
    pub(super) boards: Boards,
    /// Who has asked for news and not been told.
    pub(super) asking: BTreeSet<u32>,
    /// How many have joined, and of them how many have started, given to the exchange under way, and gone.
    joined: u32,
    probed: u32,
    pub(super) gave: u32,
    pub(super) gone: u32,
    died: u32,
    mail: Vec<Mail>,
}

/// What is known of one rank.
#[derive(Debug, Default)]
pub(super) struct Seat {
    member: Option<Member>,
    arena: Option<Arc<OwnedFd>>,
    /// `Some(obstacle)` once the rank has probed.
    probed: Option<Option<String>>,
    /// What the rank has given to the exchange that is under way.
    pub(super) given: Option<Arc<[u8]>>,
    pub(super) gone: Gone,
    /// How long the rank waits for others, from when on it does, and until when.
    pub(super) patience: Duration,
    pub(super) until: Option<Instant>,
    /// Its connection broke, and so; the launcher may say until then how the process ended.
    lost: Option<(Instant, String)>,
    /// Set while the rank waits for news: up to which version it knows the boards.
    pub(super) seen: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Gone {
    #[default]
    No,
    Goodbye,
    Died,
    /// We have told it why there is nothing to wait for.
    TurnedAway,
}

/// How long a broken connection waits for the launcher to say how the process ended.
const EXIT_NEWS: Duration = Duration::from_millis(100);

/// Why somebody is not taken in.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NotAdmitted {
    /// There is no place for this one, and here is why.
    Refused(String),
    /// It belongs to another job, which may meet here later.
    OtherJob,
}

/// Why a rank is not served any longer: it said something that no rank says there.
pub(super) type Fault = String;

impl Job {
    pub(super) fn new(ranks: u32) -> Job {
        Job {
            name: String::new(),
            titles: Vec::new(),
            ranks,
            absent: Vec::new(),
            seats: (0..ranks).map(|_| Seat::default()).collect(),
            options: None,
            refused: None,
            boards: Boards::default(),
            asking: BTreeSet::new(),
            joined: 0,
            probed: 0,
            gave: 0,
            gone: 0,
            died: 0,
            mail: Vec::new(),
        }
    }

    /// One of several that meet at the same place, with what people call its ranks.
    pub(super) fn of(name: String, titles: Vec<String>) -> Job {
        let ranks = titles.len() as u32;
        Job { name, titles, ..Job::new(ranks) }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// How many ranks it has; 0 while that is not known.
    pub(super) fn ranks(&self) -> u32 {
        self.ranks
    }

    /// The ranks for want of which it could not start.
    pub(super) fn absent(&self) -> &[u32] {
        &self.absent
    }

    /// What people call a rank.
    pub(super) fn title(&self, rank: u32) -> String {
        self.titles.get(rank as usize).cloned().unwrap_or_else(|| rank.to_string())
    }

    /// What is to be brought to ranks since this was last asked, in order.
    pub(super) fn take_mail(&mut self) -> Vec<Mail> {
        std::mem::take(&mut self.mail)
    }

    pub(super) fn post(&mut self, rank: u32, bytes: Arc<[u8]>) {
        self.mail.push(Mail::Parcel(rank, Parcel::Bytes(bytes)));
    }

    /// Tells everyone who is there, with the same bytes.
    pub(super) fn post_all(&mut self, what: &FromServer) {
        let bytes: Arc<[u8]> = frame_of(what).into();
        for rank in self.present() {
            self.post(rank, Arc::clone(&bytes));
        }
    }

    /// Those who have joined and not gone.
    pub(super) fn present(&self) -> Vec<u32> {
        let is_here = |rank: &u32| {
            let seat = &self.seats[*rank as usize];
            seat.member.is_some() && seat.gone == Gone::No && seat.lost.is_none()
        };
        (0..self.ranks).filter(is_here).collect()
    }

    pub(super) fn is_complete(&self) -> bool {
        self.ranks > 0 && self.joined == self.ranks
    }

    fn has_started(&self) -> bool {
        self.ranks > 0 && self.probed == self.ranks
    }

    /// Is nobody to be expected or served any more?
    pub(super) fn is_over(&self) -> bool {
        (self.ranks > 0 && self.gone == self.ranks) || (self.refused.is_some() && self.gone == self.joined)
    }

    /// How far it has come.
    pub(super) fn attendance(&self) -> Attendance {
        let (joined, gone, died) = (self.joined, self.gone, self.died);
        Attendance { joined, gone, died, is_over: self.is_over(), refused: self.refused.clone() }
    }

    /// Takes a rank in, or says why not.
    pub(super) fn admit(
        &mut self,
        hello: Hello,
        arena: Option<OwnedFd>,
        now: Instant,
    ) -> Result<u32, NotAdmitted> {
        let rank = hello.member.rank;
        if hello.magic == MAGIC && hello.job != self.name {
            return Err(NotAdmitted::OtherJob);
        }
        self.check(&hello).map_err(NotAdmitted::Refused)?;
        let patience = Duration::from_millis(hello.patience_ms).min(LONGEST);
        let seat = &mut self.seats[rank as usize];
        seat.member = Some(hello.member);
        seat.arena = arena.map(Arc::new);
        (seat.patience, seat.until) = (patience, Some(now + patience));
        self.options.get_or_insert((rank, hello.options));
        self.joined += 1;
        if self.is_complete() {
            self.welcome();
        }
        Ok(rank)
    }

    fn check(&mut self, hello: &Hello) -> Result<(), String> {
        let rank = hello.member.rank;
        if hello.magic != MAGIC {
            return Err("this is not a tbccl rank".into());
        }
        if let Some(why) = &self.refused {
            return Err(why.clone());
        }
        if self.ranks == 0 && (1..=MAX_RANKS).contains(&hello.size) {
            self.ranks = hello.size;
            self.seats = (0..hello.size).map(|_| Seat::default()).collect();
        }
        if hello.size != self.ranks || rank >= self.ranks {
            let why = format!("rank {rank} of {} cannot join a job of {} ranks", hello.size, self.ranks);
            self.refuse_unless_complete(&why);
            return Err(why);
        }
        if hello.member.host.len() > HOST_NAME || hello.member.host.contains(char::is_control) {
            return Err(format!("rank {rank} gives a name of its host that none has"));
        }
        if hello.member.muster.len() > MUSTER || hello.member.muster.contains(char::is_control) {
            return Err(format!("rank {rank} is to be met later on where nobody is"));
        }
        if let Some(taken) = &self.seats[rank as usize].member {
            return Err(format!(
                "rank {rank} has already joined (process {} on {}); start each rank once",
                taken.pid, taken.host
            ));
        }
        if let Some((first, options)) = &self.options
            && let Some(why) = difference(*first, options, rank, &hello.options)
        {
            self.refuse(&why);
            return Err(why);
        }
        Ok(())
    }

    /// Everyone is here: tells them of each other.
    fn welcome(&mut self) {
        let members = self.seats.iter().filter_map(|seat| seat.member.clone()).collect();
        self.post_all(&FromServer::Welcome { members });
        let arenas: Vec<Arc<OwnedFd>> = self.seats.iter().filter_map(|seat| seat.arena.clone()).collect();
        for rank in 0..self.ranks {
            let parcels = arenas.iter().map(|arena| Parcel::Descriptor(Arc::clone(arena)));
            self.mail.extend(parcels.map(|parcel| Mail::Parcel(rank, parcel)));
        }
    }

    /// Takes a word of a rank. The bytes of an exchange come with its word.
    pub(super) fn hear(
        &mut self,
        rank: u32,
        word: FromRank,
        bytes: Vec<u8>,
        now: Instant,
    ) -> Result<(), Fault> {
        if matches!(word, FromRank::Beat) || self.seats[rank as usize].gone != Gone::No {
            return Ok(());
        }
        match word {
            FromRank::Probed { obstacle } => self.probed(rank, obstacle),
            _ if !self.has_started() => Err(format!("rank {rank} spoke before all had started")),
            FromRank::Exchange { .. } => self.give(rank, bytes, now),
            FromRank::Look { seen, words } => {
                self.look(rank, seen, &words);
                Ok(())
            }
            FromRank::Raise { words } => {
                self.raise(words);
                Ok(())
            }
            FromRank::Goodbye { words } => {
                self.publish(rank, &words);
                self.leave(rank);
                Ok(())
            }
            FromRank::GivenUp { why } => {
                // First, so that others hear why it has gone and not only that it has.
                self.refuse(&format!("rank {}: {}", self.title(rank), sentence(&why)));
                self.leave(rank);
                Ok(())
            }
            FromRank::Beat => Ok(()),
        }
    }

    fn probed(&mut self, rank: u32, obstacle: Option<String>) -> Result<(), Fault> {
        let is_complete = self.is_complete();
        let seat = &mut self.seats[rank as usize];
        if !is_complete || seat.probed.is_some() {
            return Err(format!("rank {rank} reported out of turn"));
        }
        seat.probed = Some(obstacle.map(|text| sentence(&text)));
        self.probed += 1;
        if self.has_started() {
            // Everyone has mapped everyone's memory; it is to end with the ranks and not with us.
            self.seats.iter_mut().for_each(|seat| (seat.arena, seat.until) = (None, None));
            let obstacle = self.seats.iter().find_map(|seat| seat.probed.clone().flatten());
            self.post_all(&FromServer::Go { obstacle });
        }
        Ok(())
    }

    fn leave(&mut self, rank: u32) {
        if self.seats[rank as usize].gone != Gone::No {
            return;
        }
        self.mark_gone(rank, Gone::Goodbye);
        self.mail.push(Mail::End(rank));
    }

    fn mark_gone(&mut self, rank: u32, how: Gone) {
        let seat = &mut self.seats[rank as usize];
        if seat.member.is_some() && seat.gone == Gone::No {
            self.gone += 1;
        }
        seat.gone = how;
        (seat.seen, seat.until, seat.lost) = (None, None, None);
        self.asking.remove(&rank);
        if self.has_started() {
            self.tell_waiting_of_leavers();
        }
    }

    /// Tells a rank why there is nothing to wait for.
    pub(super) fn turn_away(&mut self, rank: u32, why: &str) {
        let refused = FromServer::Refused { why: why.to_owned(), absent: self.absent.clone() };
        self.post(rank, frame_of(&refused).into());
        let seat = &mut self.seats[rank as usize];
        if seat.given.take().is_some() {
            self.gave -= 1;
        }
        self.seats[rank as usize].gone = Gone::TurnedAway;
        self.seats[rank as usize].until = None;
        self.gone += 1;
        self.mail.push(Mail::End(rank));
    }

    /// The job can't start: tells all who wait for it to, and those who come later.
    pub(super) fn refuse(&mut self, why: &str) {
        if self.refused.is_some() {
            return;
        }
        self.refused = Some(why.to_owned());
        for rank in self.present() {
            let seat = &self.seats[rank as usize];
            if !self.has_started() || seat.given.is_some() {
                self.turn_away(rank, why);
            }
        }
    }

    /// Refuses the job for the sake of someone who can't belong to it, if it may be that nobody else is to come.
    pub(super) fn refuse_unless_complete(&mut self, why: &str) {
        if !self.is_complete() {
            self.refuse(why);
        }
    }

    /// A rank's connection broke; `how` is the rest of a sentence.
    pub(super) fn lose(&mut self, rank: u32, how: &str, now: Instant) {
        let seat = &mut self.seats[rank as usize];
        if seat.gone == Gone::No && seat.lost.is_none() {
            seat.lost = Some((now + EXIT_NEWS, how.to_owned()));
            seat.seen = None;
            self.asking.remove(&rank);
        }
    }

    /// The process of a rank ended, the launcher says; `how` is the rest of a sentence.
    pub(super) fn report_exit(&mut self, rank: u32, pid: u32, how: &str) {
        if self.seats.get(rank as usize).is_some_and(|seat| seat.gone == Gone::No) {
            self.die(rank, how, &format!(" (process {pid})"));
        }
    }

    /// The process of a rank ended with status 0, the launcher says. Once it has joined, its own goodbye counts.
    pub(super) fn report_success(&mut self, rank: u32, pid: u32) {
        if self.seats.get(rank as usize).is_some_and(|seat| seat.member.is_none()) {
            self.refuse(&format!("rank {rank} (process {pid}) ended with status 0 without joining the job"));
        }
    }

    fn die(&mut self, rank: u32, how: &str, process: &str) {
        let had_started = self.has_started();
        self.mark_gone(rank, Gone::Died);
        self.died += 1;
        if had_started {
            self.post_all(&FromServer::Died { rank, how: how.to_owned() });
        } else {
            self.absent = vec![rank];
            self.refuse(&format!("rank {}{process} {how} before all ranks had joined", self.title(rank)));
        }
    }

    /// When something falls due.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let of =
            |seat: &Seat| seat.until.into_iter().chain(seat.lost.as_ref().map(|(until, _)| *until)).min();
        self.seats.iter().filter_map(of).min()
    }

    /// Does what has fallen due.
    pub(super) fn tick(&mut self, now: Instant) {
        for rank in 0..self.ranks {
            if let Some((_, how)) = self.seats[rank as usize].lost.take_if(|(until, _)| *until <= now) {
                self.die(rank, &how, "");
            }
        }
        if self.seats.iter().any(|seat| seat.until.is_some_and(|until| until <= now)) {
            // It is over for all: a rank that joins later would wait for this one in vain.
            let (absent, why) = if self.gave > 0 { self.not_given() } else { self.overdue() };
            self.absent = absent;
            self.refuse(&why);
        }
    }

    /// Whom everyone waited for in vain, and a sentence about them.
    fn overdue(&self) -> (Vec<u32>, String) {
        let (who, what) = if self.is_complete() {
            (self.those(|seat| seat.probed.is_none()), "joined, but have not started")
        } else {
            (self.those(|seat| seat.member.is_none()), "not joined")
        };
        let names = self.names(&who);
        let why = format!(
            "these ranks have {what} in time: {names}; start them, or allow more time with TBCCL_TIMEOUT"
        );
        (who, why)
    }

    pub(super) fn those(&self, holds: impl Fn(&Seat) -> bool) -> Vec<u32> {
        (0..self.ranks).filter(|rank| holds(&self.seats[*rank as usize])).collect()
    }

    /// What people call these; not more than they read.
    pub(super) fn names(&self, of: &[u32]) -> String {
        const SHOWN: usize = 20;
        let names: Vec<String> = of.iter().take(SHOWN).map(|rank| self.title(*rank)).collect();
        match of.len().saturating_sub(SHOWN) {
            0 => names.join(", "),
            more => format!("{} and {more} more", names.join(", ")),
        }
    }
}
