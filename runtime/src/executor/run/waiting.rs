//! The state of a run in a long wait, the watch that decides whether it goes on, and the reason for its end.

use super::{Run, observer::Observer};
use crate::{
    call::CallRecord,
    error::Error,
    executor::{links::Links, program::Program},
};
use std::{fmt::Write, time::Duration};
use topology::Rank;
use transport::TransportError;

/// Why a run ended early.
#[derive(Debug)]
pub(crate) enum Stop {
    /// A link failed.
    Link { step: String, peer: Rank, error: TransportError },
    /// The watch said so.
    Watch(Error),
}

/// The subject of a wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting<'a> {
    pub(super) at: At<'a>,
    pub(super) links: &'a Links,
    /// How long nothing has moved.
    pub(crate) waited: Duration,
}

/// The place of a wait.
#[derive(Clone, Copy, Debug)]
pub(super) enum At<'a> {
    /// In a run, and at which step of it, if one is known.
    Step(&'a Program, Option<(u32, Rank)>),
    /// At a message from a caller that uses links without a program.
    Message {
        /// The other end; `None` for any.
        peer: Option<Rank>,
        sends: bool,
        details: &'a str,
    },
    /// At the only step of a message.
    Single { peer: Rank, sends: bool },
    /// After the last step, for a rank that has not entered the call.
    Entry(Rank),
}

impl At<'_> {
    /// Appends the description of the step; nothing if none is known.
    pub(super) fn write(&self, out: &mut String) {
        let written = match *self {
            At::Step(program, Some((step, peer))) => {
                program.write_step(step, peer, out);
                Ok(())
            }
            At::Step(_, None) => Ok(()),
            At::Message { details, .. } => out.write_str(details),
            At::Single { peer, sends: true } => write!(out, "send to rank {peer}"),
            At::Single { peer, sends: false } => write!(out, "recv from rank {peer}"),
            At::Entry(peer) => write!(out, "for rank {peer} to enter the call"),
        };
        debug_assert!(written.is_ok(), "writing to a string");
    }
}

impl Waiting<'_> {
    /// The links of the run.
    pub(crate) fn links(&self) -> &Links {
        self.links
    }

    /// Returns the description of the next step, if one is known.
    pub(crate) fn step(&self) -> Option<String> {
        let mut step = String::new();
        self.write_step(&mut step);
        (!step.is_empty()).then_some(step)
    }

    /// Appends the description of the next step; nothing if none is known.
    pub(crate) fn write_step(&self, out: &mut String) {
        self.at.write(out);
    }

    /// Returns the rank that the next step waits for, `None` for any, and whether the step sends to it;
    /// nothing if that is not known.
    pub(crate) fn peer(&self) -> Option<(Option<Rank>, bool)> {
        match self.at {
            At::Step(program, step) => step.map(|(step, peer)| (Some(peer), program.sends(step))),
            At::Message { peer, sends, .. } => Some((peer, sends)),
            At::Single { peer, sends } => Some((Some(peer), sends)),
            At::Entry(peer) => Some((Some(peer), false)),
        }
    }
}

/// Decides, when a wait gets long, whether it may go on.
pub(crate) trait Watch {
    fn look(&mut self, waiting: &Waiting<'_>) -> Result<(), Error>;

    /// Looks at the rails, for the trace of the run.
    fn observe_rails(&self) {}

    /// Returns the calls of the run, for its trace.
    fn calls(&self) -> &[CallRecord] {
        &[]
    }
}

impl<const ANNOUNCES: bool, const GROUPED: bool, O: Observer> Run<'_, '_, ANNOUNCES, GROUPED, O> {
    /// Returns the reason for the end of a run whose stream at `at` has failed.
    pub(super) fn failed(&self, at: usize, error: TransportError) -> Stop {
        let stream = &self.program.streams[at];
        let cursor = &self.workspace.cursors[at];
        let step = self.program.order[cursor.done.min(stream.end - 1) as usize];
        Stop::Link { step: self.program.describe(step, stream.peer), peer: stream.peer, error }
    }

    /// Returns the peers of the streams that are not complete.
    #[inline]
    pub(super) fn missing(&self) -> impl Iterator<Item = Rank> {
        let streams = self.program.streams.iter().zip(&self.workspace.cursors);
        streams.filter(|(stream, cursor)| cursor.done < stream.end).map(|(stream, _)| stream.peer)
    }

    /// Returns the step of the next expected message: a receive if there is one, since sends depend on
    /// receives.
    pub(super) fn waiting(&self, waited: Duration) -> Waiting<'_> {
        let pending = |sends: bool| {
            let streams = self.program.streams.iter().zip(&self.workspace.cursors);
            streams.filter(move |(s, c)| s.sends == sends && c.done < s.end).find_map(|(s, c)| {
                let step = self.program.order[c.done as usize];
                (self.workspace.waits_for[step as usize] == 0).then_some((step, s.peer))
            })
        };
        let at = pending(false).or_else(|| pending(true));
        Waiting { at: At::Step(self.program, at), links: &*self.links, waited }
    }

    /// Lets the watch check the run although messages are moving, because it has requests.
    #[cold]
    pub(super) fn look_in_passing(&self, watch: &mut dyn Watch) -> Result<(), Stop> {
        watch.look(&self.waiting(Duration::ZERO)).map_err(Stop::Watch)
    }
}
