//! Communicators made from others: of some of the ranks ([`Communicator::split`]), without lost ranks
//! ([`Communicator::shrink`]), or with new ones ([`Communicator::grow`]).
//!
//! This module decides which ranks take part, from arguments and from messages between the ranks;
//! `join::rejoin` brings them together. The new communicator has links and a rendezvous of its own: it needs
//! nothing of the old one, which may go on, fail or be closed. Over RDMA both use the same connections and
//! the same slab, which end with the last of them.
//!
//! Only colors and keys travel over links. A communicator that has failed cannot be relied on to carry
//! anything, so survivors meet at the listeners that they have known since they started.

use super::{Communicator, cores::CoreShare, join::Rejoin};
use crate::{
    Config, UniqueId,
    error::{Error, Result},
    forks,
};
use bootstrap::LAUNCHER_ADVICE;
use topology::Rank;
use transport::WaitPolicy;

impl Communicator {
    /// Splits the communicator: ranks with the same color form a communicator each. All ranks call it, as
    /// their next collective.
    ///
    /// In each new communicator, ranks are numbered by their keys, and where these are equal as they are
    /// here. A rank without a color takes part and gets none. `config` is that of the new communicator; its
    /// shared options are equal on its ranks. A device matrix describes the ranks of the whole job; a model
    /// of machines and cables is not used.
    ///
    /// As `MPI_Comm_split` and `ncclCommSplit`. This communicator remains usable, and may be closed at any
    /// time. The time limit holds for the exchange of colors, and again for the ranks to join; a death of one
    /// of them ends the wait.
    ///
    /// # Errors
    /// The errors of a collective; [`Error::Absent`] for ranks of the same color that do not come within the
    /// time limit, and the errors of [`Communicator::from_env`]. If the exchange of colors has succeeded,
    /// this communicator has not failed.
    pub fn split(&mut self, color: Option<u32>, key: i32, config: &Config) -> Result<Option<Communicator>> {
        let said = [color.map_or(NO_COLOR, i64::from), i64::from(key)];
        let mut words = vec![0; 2 * self.size() as usize];
        self.all_gather(&said, &mut words)?;
        let Some(color) = color else { return Ok(None) };
        let members = of_color(&words, color);
        self.make(&format!("split {} of color {color}", self.seq), &members, config).map(Some)
    }

    /// Returns a communicator without some ranks; the others keep their order. The survivors call it, all
    /// with the same list.
    ///
    /// It needs nothing of this communicator: it works whether that has failed or not, and whichever ranks
    /// have been killed, including rank 0 and the one with the rendezvous. Repeat it with a longer list when
    /// more ranks turn out to be lost. The result can be shrunk again.
    ///
    /// As `ncclCommShrink`. Live ranks that are left out are not told. For `config` see
    /// [`Communicator::split`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for ranks outside the communicator, or when this rank is among them.
    /// [`Error::Absent`] for survivors that have ended, or have not come within the time limit, by their
    /// ranks here.
    pub fn shrink(&mut self, without: &[Rank], config: &Config) -> Result<Communicator> {
        let (members, left_out) = survivors(self.rank(), self.size(), without)?;
        self.make(&format!("shrink without {left_out}"), &members, config)
    }

    /// Creates an id with which new ranks join: one rank creates it, passes it to [`Communicator::grow`], and
    /// to the new ranks. It opens a rendezvous in this process, which must live as long as the new
    /// communicator. The rendezvous is closed when that `grow` fails, or when this communicator is closed
    /// before it.
    ///
    /// # Errors
    /// As for [`UniqueId::create`].
    pub fn grow_id(&mut self) -> Result<UniqueId> {
        self.check_alive()?;
        let id = UniqueId::create()?;
        self.open_ids.0.push(id.clone());
        Ok(id)
    }

    /// Returns a communicator of these ranks, which keep their numbers, and of new ones, `size` in all. All
    /// ranks call it, as their next collective; one of them passes the id that it has created, the others
    /// none.
    ///
    /// The new ranks join with [`Communicator::from_unique_id`], as ranks from the present size on. `config`
    /// is that of the new communicator, and equals that of the new ranks; a device matrix describes its
    /// ranks.
    ///
    /// As `ncclCommGrow`. The id holds a secret: among the present ranks it travels only over the connections
    /// to the rendezvous, which are encrypted between hosts.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when the communicator would not grow, or not exactly one rank passes an id;
    /// otherwise as for [`Communicator::from_unique_id`]. If ranks do not call it in time, this communicator
    /// has failed.
    pub fn grow(&mut self, id: Option<&UniqueId>, size: u32, config: &Config) -> Result<Communicator> {
        let grown = self.grow_by(id, size, config);
        if let Some(id) = id {
            let why = grown.as_ref().err().map(ToString::to_string).unwrap_or_default();
            self.open_ids.close(id, &format!("the communicator can't grow: {why}"));
        }
        grown
    }

    fn grow_by(&mut self, id: Option<&UniqueId>, size: u32, config: &Config) -> Result<Communicator> {
        if size <= self.size() {
            let what = format!("{} ranks can't grow to {size}", self.size());
            return Err(Error::InvalidArgument(what));
        }
        self.check_alive()?;
        let said = id.map_or_else(Vec::new, |id| id.as_bytes().to_vec());
        let heard = self.exchange_over_bootstrap(&said).or_else(|error| match self.failed {
            Some(_) => Err(error),
            // The rendezvous has ended the connections of the ranks that waited.
            None => self.fail(self.not_called(error)).map(|()| Vec::new()),
        })?;
        let mut given = (0..).zip(heard).filter(|(_, said)| !said.is_empty());
        let (Some((giver, bytes)), None) = (given.next(), given.next()) else {
            return Err(Error::InvalidArgument("exactly one rank gives the id with which to grow".into()));
        };
        let bytes = bytes.try_into();
        let id = UniqueId::from_bytes(bytes.map_err(|_| Error::InvalidArgument("not a unique id".into()))?)?;
        let grown = Communicator::from_unique_id(&id, self.rank().0, size, config);
        grown.map_err(|error| self.not_served(Rank(giver), error))
    }

    /// Names the rank that has created the id, and serves the ranks, in an error of the connection to it.
    fn not_served(&self, giver: Rank, error: Error) -> Error {
        let Error::Bootstrap(why) = &error else { return error };
        match (why.strip_suffix(LAUNCHER_ADVICE), self.peers.names.get(giver.index())) {
            (Some(why), Some(name)) => {
                let why = format!("{why}{name}, whose id the ranks join with, has ended");
                Error::Absent { ranks: vec![giver], why }
            }
            _ => error,
        }
    }

    /// Names the ranks that did not call `grow` in an error of the exchange.
    fn not_called(&self, error: Error) -> Error {
        let Error::Absent { ranks, .. } = error else { return error };
        let names: Vec<String> = ranks
            .iter()
            .filter_map(|rank| self.peers.names.get(rank.index()))
            .map(ToString::to_string)
            .collect();
        let why = format!(
            "these ranks have not called `grow` in time: {}; allow more time with TBCCL_TIMEOUT",
            names.join(", ")
        );
        Error::Absent { ranks, why }
    }

    /// Exchanges messages by rank, each the bytes of an id or empty, over the bootstrap's connections. They
    /// do not travel over links, which could be eavesdropped on.
    fn exchange_over_bootstrap(&mut self, said: &[u8]) -> Result<Vec<Vec<u8>>> {
        if matches!(self.rejoin, Rejoin::Processes(_)) {
            let connection = self.peers.connection.as_mut().ok_or(Error::LauncherGone)?;
            return connection.exchange_in_call(said).map_err(|error| {
                let is_launcher = self.peers.rendezvous_rank.is_none();
                if connection.has_closed() && is_launcher { Error::LauncherGone } else { error.into() }
            });
        }
        // Threads of one process use its memory.
        let mut word = [0; 1 + UniqueId::BYTES];
        if !said.is_empty() {
            word[0] = 1;
            word[1..].copy_from_slice(said);
        }
        let mut all = vec![0; word.len() * self.size() as usize];
        self.all_gather(&word, &mut all)?;
        let part = |word: &[u8]| if word[0] == 1 { word[1..].to_vec() } else { Vec::new() };
        Ok(all.chunks_exact(word.len()).map(part).collect())
    }

    /// Lets waits of this communicator, and of those made from it, spin for messages under way only and then
    /// yield the core, unless there are `threads` cores for each rank that may use this rank's. Returns
    /// whether there are.
    #[doc(hidden)]
    pub fn spin_long_with_cores_for(&mut self, threads: u32, config: &Config) -> bool {
        let CoreShare { cores, ranks } = CoreShare::of(self.rank(), self.members());
        let suffice = ranks.saturating_mul(threads) <= cores;
        if !suffice && config.polling.spin_polls.is_none() {
            self.executor.spin_at_most(WaitPolicy::BRIEF_SPIN_POLLS);
        }
        suffice
    }

    /// Makes the communicator of these ranks, in this order, this rank among them. All of them pass the same
    /// name, which differs from that of any other such call in progress between them.
    fn make(&self, job: &str, members: &[Rank], config: &Config) -> Result<Communicator> {
        forks::check(self.origin)?;
        let mut made: Result<Communicator> = match &self.rejoin {
            Rejoin::Threads(rendezvous) => rendezvous.meet(job, self.rank(), members, config),
            Rejoin::Processes(processes) => {
                let ranks: Vec<u32> = members.iter().map(|member| member.0).collect();
                let deaths = self.peers.connection.as_ref().map(|connection| connection.death_watch(ranks));
                processes.meet(job, (self.rank(), &*self.peers.names), members, deaths, config)
            }
        };
        if let Ok(made) = &mut made {
            made.peers.control.set_place(self.peers.control.place());
            // The ranks that are left out need the cores, too.
            if config.polling.spin_polls.is_none() {
                made.executor.spin_at_most(self.executor.spin_polls());
            }
        }
        made.map_err(|error| match error {
            // Callers know the missing ranks by their numbers here.
            Error::Absent { ranks, why } => {
                let here = ranks.iter().filter_map(|rank| members.get(rank.index()));
                Error::Absent { ranks: here.copied().collect(), why: format!("{job}: {why}") }
            }
            other => other,
        })
    }
}

/// Ids with which new ranks are to join, until they do. Their rendezvous are closed with the communicator.
#[derive(Debug, Default)]
pub(super) struct OpenIds(Vec<UniqueId>);

impl OpenIds {
    /// Closes the rendezvous of an id, unless the ranks have joined it.
    fn close(&mut self, id: &UniqueId, why: &str) {
        self.0.retain(|open| open != id);
        id.discard(why);
    }
}

impl Drop for OpenIds {
    fn drop(&mut self) {
        self.0.iter().for_each(|id| id.discard("the communicator that was to grow is closed"));
    }
}

/// The color of a rank that joins no communicator. Colors are not negative.
const NO_COLOR: i64 = -1;

/// Returns the ranks of a color in the order of their keys, from all ranks' colors and keys.
fn of_color(words: &[i64], color: u32) -> Vec<Rank> {
    let said = words.chunks_exact(2).zip(0..);
    let mut found: Vec<(i64, u32)> =
        said.filter(|(said, _)| said[0] == i64::from(color)).map(|(said, rank)| (said[1], rank)).collect();
    found.sort_unstable();
    found.into_iter().map(|(_, rank)| Rank(rank)).collect()
}

/// Returns all ranks except some, and the latter as text.
fn survivors(me: Rank, size: u32, without: &[Rank]) -> Result<(Vec<Rank>, String)> {
    if let Some(rank) = without.iter().find(|rank| rank.0 >= size) {
        return Err(Error::InvalidArgument(format!("rank {rank} can't be left out: there are {size} ranks")));
    }
    if without.contains(&me) {
        return Err(Error::InvalidArgument(format!(
            "rank {me} is to be left out and can't take part: only those that remain shrink a communicator"
        )));
    }
    let (left_out, members): (Vec<Rank>, Vec<Rank>) =
        (0..size).map(Rank).partition(|rank| without.contains(rank));
    let text: Vec<String> = left_out.iter().map(ToString::to_string).collect();
    Ok((members, if text.is_empty() { "any".to_owned() } else { text.join(", ") }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_a_colour_are_in_the_order_of_their_keys_and_then_their_own() {
        let words = [7, 5, NO_COLOR, 0, 7, -2, 3, 0, 7, 5, 7, i64::from(i32::MIN)];
        assert_eq!(of_color(&words, 7), [5, 2, 0, 4].map(Rank));
        assert_eq!(of_color(&words, 3), [Rank(3)]);
        assert_eq!(of_color(&words, u32::MAX), []);
    }

    #[test]
    fn an_id_whose_grow_fails_or_never_comes_keeps_no_rendezvous_open() {
        let config = Config { slab_bytes: Some(1 << 20), ..Config::default() };
        let mut comm = Communicator::local(1, &config).expect("memory for a test").swap_remove(0);
        let is_open = |id: &UniqueId| {
            let port = u16::from_be_bytes([id.as_bytes()[6], id.as_bytes()[7]]);
            std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
        };
        let [failing, waiting] = [(); 2].map(|()| comm.grow_id().expect("a rendezvous"));
        assert!(is_open(&failing) && is_open(&waiting));
        comm.grow(Some(&failing), 1, &config).expect_err("no rank more");
        assert!(!is_open(&failing) && is_open(&waiting));
        drop(comm);
        assert!(!is_open(&waiting));
    }

    #[test]
    fn survivors_keep_their_order_however_the_others_are_listed() {
        let (members, text) = survivors(Rank(2), 5, &[Rank(4), Rank(0), Rank(4)]).expect("three are left");
        assert_eq!((members, text.as_str()), ([1, 2, 3].map(Rank).to_vec(), "0, 4"));
        assert_eq!(survivors(Rank(0), 2, &[]).expect("all").0.len(), 2);
        for (without, what) in [(Rank(5), "there are 5 ranks"), (Rank(2), "can't take part")] {
            let error = survivors(Rank(2), 5, &[without]).expect_err("refused").to_string();
            assert!(error.contains(what), "{error}");
        }
    }
}
