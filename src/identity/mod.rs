//! Who this process is: which rank of how many, and where the others are met.
//!
//! Read once from the environment, before anything is opened. Nothing here connects.

use crate::{
    bootstrap::{Address, Place, Secret},
    error::{Error, Result},
};
use std::time::Duration;

/// How long a rank tries to reach a rendezvous that must be there already.
const RETRY: Duration = Duration::ZERO;

/// The job's secret, from the environment or a file.
fn secret() -> Result<Option<Secret>> {
    let wrong = |name: &str, e| Error::Bootstrap(format!("{name}: {e}"));
    if let Ok(digits) = std::env::var("TBCCL_SECRET") {
        return Secret::from_hex(&digits).map(Some).map_err(|e| wrong("TBCCL_SECRET", e));
    }
    match std::env::var_os("TBCCL_SECRET_FILE") {
        Some(path) => Secret::from_file(path.as_ref()).map(Some).map_err(|e| wrong("TBCCL_SECRET_FILE", e)),
        None => Ok(None),
    }
}

/// Who this process is, as the launcher says.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) rank: u32,
    pub(crate) size: u32,
    /// Where the others are met.
    pub(crate) place: Place,
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
            place: Place {
                addresses: Address::list(&var("TBCCL_BOOTSTRAP")?).map_err(Error::Bootstrap)?,
                secret: secret()?,
                patience: RETRY,
            },
        };
        if identity.rank >= identity.size {
            let Identity { rank, size, .. } = identity;
            return Err(Error::Bootstrap(format!("TBCCL_RANK={rank} is not one of 0..{size} (TBCCL_SIZE)")));
        }
        Ok(identity)
    }
}
