//! The rendezvous without its event loop: guests and the job, turn by turn, with a clock of the caller's.

use super::{
    super::pipe::{Filled, Pipe},
    guest::{Guest, Said, Stage},
    job::{Job, Mail},
};
use std::time::Instant;

/// A rendezvous whose turns are asked for.
pub(crate) struct Rehearsed {
    job: Job,
    guests: Vec<Option<Guest>>,
    start: Instant,
}

impl Rehearsed {
    pub(crate) fn new(ranks: u32, start: Instant) -> Rehearsed {
        Rehearsed { job: Job::new(ranks), guests: Vec::new(), start }
    }

    /// Lets somebody in who is taken for one of the job.
    pub(crate) fn let_in(&mut self, pipe: Pipe) {
        let guest = Guest { pipe, stage: Stage::Greeting, since: self.start, deadline: None };
        self.guests.push(Some(guest));
    }

    /// Hears all, passes time, and brings the mail.
    pub(crate) fn turn(&mut self, now: Instant) {
        for slot in &mut self.guests {
            let Some(mut guest) = slot.take() else { continue };
            let filled = guest.fill();
            let heard = hear(&mut self.job, &mut guest, now);
            match (heard, filled) {
                (true, Ok(Filled::Dry | Filled::More)) => *slot = Some(guest),
                _ => {
                    if let Some(rank) = guest.rank() {
                        self.job.lose(rank, "broke", now);
                    }
                }
            }
        }
        self.job.tick(now);
        self.job.tell_news();
        let attendance = self.job.attendance();
        assert!(
            attendance.gone <= attendance.joined && attendance.died <= attendance.joined,
            "{attendance:?}"
        );
        for mail in self.job.take_mail() {
            let (Mail::Parcel(rank, _) | Mail::End(rank)) = mail;
            let mut guests = self.guests.iter_mut().flatten();
            let Some(guest) = guests.find(|guest| guest.rank() == Some(rank)) else { continue };
            match mail {
                Mail::Parcel(_, parcel) => guest.pipe.send(parcel),
                Mail::End(_) => guest.stage = Stage::Leaving,
            }
            let _ = guest.pipe.flush();
        }
    }

    /// All that joined have gone, by themselves or because they were told to.
    pub(crate) fn assert_nobody_waits(&self) {
        let attendance = self.job.attendance();
        assert_eq!(self.job.next_deadline(), None, "{attendance:?}");
        assert!(attendance.joined == 0 || attendance.is_over, "{attendance:?}");
    }
}

/// Hears what a guest has said; false when it has to go.
fn hear(job: &mut Job, guest: &mut Guest, now: Instant) -> bool {
    loop {
        match guest.next() {
            Err(_) => return false,
            Ok(None) => return true,
            Ok(Some(Said::Hello(hello, arena))) => match job.admit(*hello, arena, now) {
                Ok(rank) => guest.stage = Stage::Rank(rank),
                Err(_) => guest.stage = Stage::Leaving,
            },
            Ok(Some(Said::OtherVersion(why))) => {
                job.refuse_unless_complete(&why);
                guest.stage = Stage::Leaving;
            }
            Ok(Some(Said::Word(rank, word, bytes))) => {
                if job.hear(rank, word, bytes, now).is_err() {
                    return false;
                }
            }
        }
    }
}
