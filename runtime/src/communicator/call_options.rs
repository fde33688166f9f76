//! What one call, or one group, is to do otherwise than its communicator does.

use super::Communicator;
use crate::error::{Error, Result};
use collectives::{MAX_SEGMENTS, Numerics, select::Names};
use std::time::Duration;

/// Options of one call. The default leaves everything as the communicator has it. All ranks give the same, but for the
/// time limit, which is a rank's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallOptions {
    /// How long it may wait without progress.
    pub timeout: Option<Duration>,
    /// As for [`Communicator::set_algorithm`].
    pub algorithm: Option<String>,
    /// The number of pieces that chunks are cut into; 0 for as many as suit.
    pub segments: u32,
    /// What is promised about the order in which contributions are combined.
    pub numerics: Option<Numerics>,
}

impl CallOptions {
    /// Is there anything to do otherwise?
    #[inline]
    pub(crate) fn is_default(&self) -> bool {
        self.timeout.is_none() && self.algorithm.is_none() && self.segments == 0 && self.numerics.is_none()
    }

    /// Can a call have these?
    ///
    /// # Errors
    /// [`Error::UnknownName`] for an algorithm that no collective has, [`Error::InvalidArgument`] for too many segments or
    /// no time at all.
    pub fn check(&self) -> Result<()> {
        self.names()?;
        check_segments(self.segments)?;
        if self.timeout == Some(Duration::ZERO) {
            return Err(Error::InvalidArgument("a time limit of 0 s leaves no time for a call".into()));
        }
        Ok(())
    }

    fn names(&self) -> Result<Option<Names>> {
        Ok(self.algorithm.as_deref().map(Names::parse).transpose()?)
    }
}

pub(super) fn check_segments(segments: u32) -> Result<()> {
    if segments > MAX_SEGMENTS {
        return Err(Error::InvalidArgument(format!("{segments} segments: there are up to {MAX_SEGMENTS}")));
    }
    Ok(())
}

impl Communicator {
    /// Does something with_options these options, and then is as it was.
    ///
    /// # Errors
    /// As for [`CallOptions::check`]; nothing is done then.
    pub(crate) fn with_options<R>(
        &mut self,
        options: &CallOptions,
        work: impl FnOnce(&mut Communicator) -> R,
    ) -> Result<R> {
        options.check()?;
        let (timeout, numerics) = (self.timeout, self.numerics);
        self.timeout = options.timeout.unwrap_or(timeout);
        self.numerics = options.numerics.unwrap_or(numerics);
        let names = options.names()?;
        let overrides_plans = names.is_some() || options.segments > 0;
        let before = overrides_plans.then(|| self.plans.override_once(names, options.segments));
        let done = work(self);
        (self.timeout, self.numerics) = (timeout, numerics);
        if let Some(before) = before {
            self.plans.restore(before);
        }
        Ok(done)
    }
}
