//! Who this process is: which rank of how many, and where the others are met.
//!
//! Read once from the environment, before anything is opened. Nothing here connects.

use crate::error::{Error, Result};

/// Who this process is, as the launcher says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) rank: u32,
    pub(crate) size: u32,
    pub(crate) bootstrap: String,
}

impl Identity {
    /// As the environment says.
    ///
    /// # Errors
    /// [`Error::Bootstrap`] when a variable is missing or senseless.
    pub(crate) fn from_env() -> Result<Identity> {
        let var = |name: &str| {
            std::env::var(name).map_err(|_| {
                Error::Bootstrap(format!(
                    "{name} is not set: start the program with `tbccl run -n RANKS -- PROGRAM`, or use Communicator::local"
                ))
            })
        };
        let number = |name: &str| {
            let text = var(name)?;
            text.parse().map_err(|_| Error::Bootstrap(format!("{name}={text} is not a number of ranks")))
        };
        let identity = Identity {
            rank: number("TBCCL_RANK")?,
            size: number("TBCCL_SIZE")?,
            bootstrap: var("TBCCL_BOOTSTRAP")?,
        };
        if identity.rank >= identity.size {
            let Identity { rank, size, .. } = identity;
            return Err(Error::Bootstrap(format!("TBCCL_RANK={rank} is not one of 0..{size} (TBCCL_SIZE)")));
        }
        Ok(identity)
    }
}
