//! How communicators come to be: of a unique id, or of what a launcher has said.

use crate::{
    calls::seconds,
    errors::{invalid, raised},
    interrupt::{aside, check_fork, notice_forks},
    state::State,
};
use pyo3::prelude::*;
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tbccl::{CallOptions, Communicator, Config, Error, P2p, UniqueId};

/// A communicator that was made, for the class that Python makes of it.
#[pyclass(frozen, module = "tbccl._native")]
#[derive(Clone, Debug)]
pub(crate) struct Made {
    pub(crate) state: Arc<State>,
    pub(crate) options: CallOptions,
}

/// The names of options as the environment has them.
fn full_name(name: &str) -> String {
    if name.starts_with("TBCCL_") { name.to_owned() } else { format!("TBCCL_{}", name.to_ascii_uppercase()) }
}

/// The options of a new communicator: those of the environment, then these.
pub(crate) fn config(timeout: Option<f64>, options: Option<BTreeMap<String, String>>) -> PyResult<Config> {
    let environment =
        std::env::vars_os().filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)));
    let own = options.unwrap_or_default().into_iter().map(|(name, value)| (full_name(&name), value));
    let mut config = Config::from_vars(environment.chain(own)).map_err(|error| raised(&error))?;
    if let Some(given) = timeout {
        config.timeout = match seconds(given)? {
            Some(Duration::ZERO) => return Err(invalid("timeout is 0; it is more")),
            Some(limit) => limit,
            // A century: beyond all clocks of a job.
            None => Duration::from_secs(u64::from(u32::MAX)),
        };
    }
    Ok(config)
}

/// What is made of a new communicator: p2p has links of its own, for which all ranks split it at once.
pub(crate) fn with_mail(
    mut comm: Communicator,
    p2p: bool,
    config: &Config,
) -> Result<(Communicator, Option<P2p>), Error> {
    if !p2p {
        return Ok((comm, None));
    }
    let part = comm.split(Some(0), 0, config)?;
    let p2p = part.map(P2p::new).transpose()?;
    Ok((comm, p2p))
}

/// Makes a communicator, which may take as long as the ranks wait for each other.
fn make(
    py: Python<'_>,
    p2p: bool,
    config: Config,
    work: impl FnOnce(&Config) -> Result<Communicator, Error> + Send + 'static,
) -> PyResult<Made> {
    check_fork()?;
    notice_forks();
    let made = aside(py, move || work(&config).and_then(|comm| with_mail(comm, p2p, &config)))?;
    let (comm, p2p) = made.map_err(|error| raised(&error))?;
    Ok(Made { state: State::new(comm, p2p), options: CallOptions::default() })
}

/// Makes an id for a new job, and opens the place in this process where its ranks meet. One of them must be this process.
#[pyfunction]
pub(crate) fn unique_id(py: Python<'_>) -> PyResult<Vec<u8>> {
    check_fork()?;
    notice_forks();
    let id = py.detach(UniqueId::create).map_err(|error| raised(&error.into()))?;
    Ok(id.as_bytes().to_vec())
}

/// The id of these bytes.
pub(crate) fn id_of(bytes: &[u8]) -> PyResult<UniqueId> {
    let bytes = bytes.try_into().map_err(|_| {
        invalid(format!("a unique id has {} bytes, and this has {}", UniqueId::BYTES, bytes.len()))
    })?;
    UniqueId::from_bytes(bytes).map_err(|error| raised(&error.into()))
}

/// Makes a communicator of `size` ranks, which all call this with the same id; waits for them.
#[pyfunction]
#[pyo3(signature = (uid, rank, size, timeout=None, options=None, p2p=true))]
pub(crate) fn join(
    py: Python<'_>,
    uid: &[u8],
    rank: i64,
    size: i64,
    timeout: Option<f64>,
    options: Option<BTreeMap<String, String>>,
    p2p: bool,
) -> PyResult<Made> {
    let id = id_of(uid)?;
    let config = config(timeout, options)?;
    let (Ok(rank), Ok(size)) = (u32::try_from(rank), u32::try_from(size)) else {
        return Err(invalid(format!("rank {rank} of {size}: ranks are numbered from 0")));
    };
    make(py, p2p, config, move |config| Communicator::from_unique_id(&id, rank, size, config))
}

/// Makes the communicator of the job that a launcher has started this process for; waits for the other ranks.
#[pyfunction]
#[pyo3(signature = (timeout=None, options=None, p2p=true))]
pub(crate) fn join_from_env(
    py: Python<'_>,
    timeout: Option<f64>,
    options: Option<BTreeMap<String, String>>,
    p2p: bool,
) -> PyResult<Made> {
    let config = config(timeout, options)?;
    make(py, p2p, config, Communicator::from_env_with)
}
