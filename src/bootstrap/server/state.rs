//! Who is where on the way through a job, and who is told.

use super::{
    super::wire::{FromServer, Hello, MAGIC, Member, write_frame},
    boards::Boards,
};
use rustix::fd::OwnedFd;
use std::{collections::BTreeMap, os::unix::net::UnixStream, sync::Arc};

#[derive(Debug)]
pub(super) struct State {
    /// By rank.
    pub(super) seats: Vec<Seat>,
    /// What all ranks must agree on, and who said it first.
    pub(super) options: Option<(u32, BTreeMap<String, String>)>,
    /// Why the job cannot start.
    pub(super) refused: Option<String>,
    pub(super) closed: bool,
    pub(super) boards: Boards,
    /// How many exchanges are over.
    pub(super) rounds: u64,
    /// What everyone gave to the latest one.
    pub(super) exchanged: Arc<Vec<Vec<u8>>>,
}

#[derive(Debug, Default)]
pub(super) struct Seat {
    pub(super) member: Option<Member>,
    pub(super) arena: Option<Arc<OwnedFd>>,
    /// For notices; set from the Welcome on.
    pub(super) stream: Option<UnixStream>,
    /// `Some(obstacle)` once the rank has probed.
    pub(super) probed: Option<Option<String>>,
    pub(super) gone: Gone,
    /// What the rank has given to the exchange that is under way.
    given: Option<Vec<u8>>,
    /// Set while the rank waits for news: up to which version it knows the boards.
    pub(super) seen: Option<u64>,
}

impl Seat {
    /// Tells the rank, if it is there to be told.
    pub(super) fn tell(&mut self, what: &FromServer) {
        if let Some(stream) = &mut self.stream {
            // A rank that cannot be told is gone itself.
            let _ = write_frame(stream, what);
        }
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum Gone {
    #[default]
    No,
    Goodbye,
    Died,
}

impl State {
    pub(super) fn new(ranks: u32) -> State {
        State {
            seats: (0..ranks).map(|_| Seat::default()).collect(),
            options: None,
            refused: None,
            closed: false,
            boards: Boards::default(),
            rounds: 0,
            exchanged: Arc::default(),
        }
    }

    fn missing(&self) -> impl Iterator<Item = usize> + '_ {
        self.seats.iter().enumerate().filter(|(_, seat)| seat.member.is_none()).map(|(r, _)| r)
    }

    /// Whom everyone waited for in vain, as a sentence.
    pub(super) fn overdue(&self) -> String {
        let name = |ranks: Vec<usize>| ranks.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
        let (who, what) = if self.complete() {
            let silent = self.seats.iter().enumerate().filter(|(_, seat)| seat.probed.is_none());
            (name(silent.map(|(r, _)| r).collect()), "joined, but have not started")
        } else {
            (name(self.missing().collect()), "not joined")
        };
        format!("these ranks have {what} in time: {who}; start them, or allow more time with TBCCL_TIMEOUT")
    }

    pub(super) fn complete(&self) -> bool {
        self.missing().next().is_none()
    }

    pub(super) fn started(&self) -> bool {
        self.seats.iter().all(|seat| seat.probed.is_some())
    }

    /// Takes a rank in, or says why not.
    pub(super) fn admit(&mut self, ranks: u32, hello: &Hello, arena: Option<OwnedFd>) -> Result<(), String> {
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
        seat.arena = arena.map(Arc::new);
        self.options.get_or_insert_with(|| (rank, hello.options.clone()));
        Ok(())
    }

    pub(super) fn announce_death(&mut self, rank: u32, how: &str) {
        self.seats[rank as usize].gone = Gone::Died;
        let notice = FromServer::Died { rank, how: how.to_owned() };
        for (_, seat) in self.seats.iter_mut().enumerate().filter(|(r, _)| *r != rank as usize) {
            seat.tell(&notice);
        }
    }

    /// Takes what a rank gives to everyone; the number of this exchange.
    pub(super) fn give(&mut self, rank: u32, bytes: Vec<u8>) -> u64 {
        let round = self.rounds;
        self.seats[rank as usize].given = Some(bytes);
        if self.seats.iter().all(|seat| seat.given.is_some()) {
            let all = self.seats.iter_mut().filter_map(|seat| seat.given.take());
            self.exchanged = Arc::new(all.collect());
            self.rounds += 1;
        }
        round
    }

    /// Whom an exchange waits for in vain, as a sentence.
    pub(super) fn not_given(&self) -> String {
        let silent = self.seats.iter().enumerate().filter(|(_, seat)| seat.given.is_none());
        let ranks: Vec<String> = silent.map(|(rank, _)| rank.to_string()).collect();
        format!(
            "these ranks have joined, but not told in time how they are reached: {}; allow more time with TBCCL_TIMEOUT",
            ranks.join(", ")
        )
    }

    /// Who has gone without giving to the exchange that is under way, as a sentence.
    pub(super) fn left_early(&self) -> Option<String> {
        let gone = |seat: &Seat| seat.given.is_none() && seat.gone != Gone::No;
        let rank = self.seats.iter().position(gone)?;
        Some(format!("rank {rank} ended while the job was starting"))
    }
}

/// The first option that two ranks set differently, as a sentence.
fn difference(
    first: u32,
    ours: &BTreeMap<String, String>,
    rank: u32,
    theirs: &BTreeMap<String, String>,
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
