//! Communicators that are made from others: of some of the ranks ([`Communicator::split`]), without those that are lost
//! ([`Communicator::shrink`]), or with new ones ([`Communicator::grow`]).
//!
//! Who takes part is decided here, from arguments and from what ranks have told each other; where they meet is the
//! business of [`hall`] for threads of one process and of [`kin`] for processes. The new communicator has links,
//! memory and a rendezvous of its own: it needs nothing of the one it was made from, which may go on, fail or be
//! closed.
//!
//! Nothing here travels over links but colours and keys. A communicator that has failed can't be relied on to carry
//! anything, so survivors meet where they have known each other to be found since they started.

use super::{Communicator, join::Rejoin};
use crate::{
    Config, UniqueId,
    error::{Error, Result},
};
use topology::Rank;

impl Communicator {
    /// Communicators of those ranks that give the same colour, one for each colour. In each, ranks are numbered by their
    /// keys, and where these are equal as they are here. A rank that gives no colour takes part and gets none. All ranks
    /// call it, as their next collective; `config` is that of the new communicator, whose shared options are equal on its
    /// ranks. A device matrix speaks of the ranks of the job, whatever they are called in communicators made of it; a
    /// model of machines and cables is not used.
    ///
    /// As `MPI_Comm_split` and `ncclCommSplit`. This communicator can be used as before, and closed whenever that suits.
    ///
    /// # Errors
    /// What a collective fails with; [`Error::Absent`] for ranks of the same colour that don't come to make their
    /// communicator within the time limit, and what [`Communicator::from_env`] fails with while it is made. This
    /// communicator has not failed then if the exchange of colours has gone well.
    pub fn split(&mut self, color: Option<u32>, key: i32, config: &Config) -> Result<Option<Communicator>> {
        let said = [color.map_or(NONE, i64::from), i64::from(key)];
        let mut words = vec![0; 2 * self.size() as usize];
        self.all_gather(&said, &mut words)?;
        let Some(color) = color else { return Ok(None) };
        let members = of_color(&words, color);
        self.make(&format!("split {} of colour {color}", self.seq), &members, config).map(Some)
    }

    /// A communicator of all ranks but these, which keep their order. The survivors call it, all with the same list. It
    /// needs nothing of this communicator: it works when that has failed or is healthy, and whichever ranks have been
    /// killed, the first one or the one with the rendezvous as well. It is repeated with a longer list when more ranks
    /// turn out to be lost, and what it has made can be shrunk again.
    ///
    /// As `ncclCommShrink`. Ranks that are left out but live are not told. For `config` see [`Communicator::split`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for ranks that there are not, or when this rank is among them. [`Error::Absent`] for
    /// survivors that have ended, or have not come within the time limit; it names them by their ranks here.
    pub fn shrink(&mut self, without: &[Rank], config: &Config) -> Result<Communicator> {
        let (members, left_out) = survivors(self.rank(), self.size(), without)?;
        self.make(&format!("shrink without {left_out}"), &members, config)
    }

    /// An id with which new ranks can be taken in: one rank makes it, gives it to [`Communicator::grow`], and passes it on
    /// to those who are to join. It opens a rendezvous in this process, which must live as long as the new communicator.
    ///
    /// # Errors
    /// As for [`UniqueId::create`].
    pub fn grow_id(&mut self) -> Result<UniqueId> {
        self.check_alive()?;
        Ok(UniqueId::create()?)
    }

    /// A communicator of these ranks, which keep their numbers, and of new ones up to a size. All ranks call it, as their
    /// next collective; one of them gives the id that it has made, the others none. The new ranks join with
    /// [`Communicator::from_unique_id`], as ranks from the present size on. `config` holds for the new communicator, and is
    /// what the new ranks give too; a device matrix speaks of its ranks.
    ///
    /// As `ncclCommGrow`. The id holds a secret: among the ranks that are here it travels only over the connections to the
    /// rendezvous, which are encrypted between hosts.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when the communicator would not grow, or not exactly one rank gives an id; otherwise as
    /// for [`Communicator::from_unique_id`].
    pub fn grow(&mut self, id: Option<&UniqueId>, size: u32, config: &Config) -> Result<Communicator> {
        if size <= self.size() {
            let what = format!("{} ranks can't grow to {size}", self.size());
            return Err(Error::InvalidArgument(what));
        }
        self.check_alive()?;
        let said = id.map_or_else(Vec::new, |id| id.as_bytes().to_vec());
        let heard = self.tell_in_private(&said)?;
        let mut given = heard.into_iter().filter(|said| !said.is_empty());
        let (Some(bytes), None) = (given.next(), given.next()) else {
            return Err(Error::InvalidArgument("exactly one rank gives the id with which to grow".into()));
        };
        let bytes = bytes.try_into();
        let id = UniqueId::from_bytes(bytes.map_err(|_| Error::InvalidArgument("not a unique id".into()))?)?;
        Communicator::from_unique_id(&id, self.rank().0, size, config)
    }

    /// What each rank says, by rank: the bytes of an id, or nothing. It does not travel over links, which others may
    /// listen to.
    fn tell_in_private(&mut self, said: &[u8]) -> Result<Vec<Vec<u8>>> {
        if matches!(self.rejoin, Rejoin::Processes(_)) {
            let connection = self.peers.connection.as_mut().ok_or(Error::LauncherGone)?;
            return Ok(connection.exchange(said)?);
        }
        // Threads of one process have no other links than its memory.
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

    /// Makes the communicator of these ranks, this one among them, in this order. All of them call it with the same name,
    /// which no other such call between them has that may be under way.
    fn make(&self, job: &str, members: &[Rank], config: &Config) -> Result<Communicator> {
        let made = match &self.rejoin {
            Rejoin::Threads(rendezvous) => rendezvous.meet(job, self.rank(), members, config),
            Rejoin::Processes(processes) => {
                processes.meet(job, (self.rank(), &*self.peers.names), members, config)
            }
        };
        made.map_err(|error| match error {
            // Those who are missing are known here by their numbers here.
            Error::Absent { ranks, why } => {
                let here = ranks.iter().filter_map(|rank| members.get(rank.index()));
                Error::Absent { ranks: here.copied().collect(), why: format!("{job}: {why}") }
            }
            other => other,
        })
    }
}

/// The colour of a rank that is to be in no communicator. Colours are not negative.
const NONE: i64 = -1;

/// The ranks of a colour in the order of their keys, from everyone's colours and keys.
fn of_color(words: &[i64], color: u32) -> Vec<Rank> {
    let said = words.chunks_exact(2).zip(0..);
    let mut found: Vec<(i64, u32)> =
        said.filter(|(said, _)| said[0] == i64::from(color)).map(|(said, rank)| (said[1], rank)).collect();
    found.sort_unstable();
    found.into_iter().map(|(_, rank)| Rank(rank)).collect()
}

/// All ranks but some, and these as text.
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
        let words = [7, 5, NONE, 0, 7, -2, 3, 0, 7, 5, 7, i64::from(i32::MIN)];
        assert_eq!(of_color(&words, 7), [5, 2, 0, 4].map(Rank));
        assert_eq!(of_color(&words, 3), [Rank(3)]);
        assert_eq!(of_color(&words, u32::MAX), []);
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
