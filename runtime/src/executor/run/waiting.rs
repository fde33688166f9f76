//! The state of a run in a long wait, the watch that decides whether it goes on, and the reason for its end.

use crate::{
    error::Error,
    executor::{links::Links, program::Program},
};
use std::time::Duration;
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
    /// A description from a caller that uses links without a program.
    Said(&'a str),
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
        match self.at {
            At::Step(program, Some((step, peer))) => program.write_step(step, peer, out),
            At::Step(_, None) => {}
            At::Said(said) => out.push_str(said),
        }
    }
}

/// Decides, when a wait gets long, whether it may go on.
pub(crate) trait Watch {
    fn look(&mut self, waiting: &Waiting<'_>) -> Result<(), Error>;
}
