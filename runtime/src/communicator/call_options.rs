//! Options of one call or one group.

use super::Communicator;
use crate::error::{Error, Result};
use collectives::{MAX_SEGMENTS, Numerics, select::Names};
use std::time::Duration;

/// Options of one call.
///
/// The default keeps the communicator's settings. All ranks pass the same options, except for the timeout,
/// which each rank chooses for itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallOptions {
    /// Time that the call may wait without progress.
    pub timeout: Option<Duration>,
    /// Algorithms, as for [`Communicator::set_algorithm`].
    pub algorithm: Option<String>,
    /// Pieces that chunks are cut into; 0 for the automatic choice.
    pub segments: u32,
    /// Order in which contributions are combined.
    pub numerics: Option<Numerics>,
}

impl CallOptions {
    /// Whether all options are the default.
    #[inline]
    pub(crate) fn is_default(&self) -> bool {
        self.timeout.is_none() && self.algorithm.is_none() && self.segments == 0 && self.numerics.is_none()
    }

    /// Checks the options.
    ///
    /// # Errors
    /// [`Error::UnknownName`] for an algorithm that no collective has, [`Error::InvalidArgument`] for too
    /// many segments or a timeout of 0.
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
    /// Runs `work` with these options, and then restores the communicator's own.
    ///
    /// # Errors
    /// Those of [`CallOptions::check`]; `work` is not run then.
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
