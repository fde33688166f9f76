//! Creation of communicators: from a unique id, or from the launcher's environment.

use crate::{
    calls::seconds,
    errors::{invalid_argument, to_exception},
    interrupt::{check_fork, register_fork_handler, run_on_thread},
    state::State,
};
use pyo3::prelude::*;
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tbccl::{CallOptions, Communicator, Config, Error, P2p, UniqueId};

/// A shared communicator and call options, from which Python creates a `Communicator`.
#[pyclass(frozen, module = "tbccl._native")]
#[derive(Clone, Debug)]
pub(crate) struct CommunicatorHandle {
    pub(crate) state: Arc<State>,
    pub(crate) options: CallOptions,
}

/// Returns the environment variable of an option: `TIMEOUT` and `TBCCL_TIMEOUT` name the same option.
fn environment_name(name: &str) -> String {
    if name.starts_with("TBCCL_") { name.to_owned() } else { format!("TBCCL_{}", name.to_ascii_uppercase()) }
}

/// Returns the configuration of a new communicator: the environment's, overridden by `options` and `timeout`.
pub(crate) fn config(timeout: Option<f64>, options: Option<BTreeMap<String, String>>) -> PyResult<Config> {
    let environment =
        std::env::vars_os().filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)));
    let explicit =
        options.unwrap_or_default().into_iter().map(|(name, value)| (environment_name(&name), value));
    let mut config = Config::from_vars(environment.chain(explicit)).map_err(|error| to_exception(&error))?;
    if let Some(given) = timeout {
        config.timeout = match seconds("timeout", given)? {
            Some(Duration::ZERO) => return Err(invalid_argument("timeout is 0; it must be longer")),
            Some(limit) => limit,
            // Infinity becomes 136 years, which no job outlasts.
            None => Duration::from_secs(u64::from(u32::MAX)),
        };
    }
    Ok(config)
}

/// Adds tagged messages to a new communicator if `p2p` asks for them.
///
/// Tagged messages use links of their own, for which all ranks split the communicator.
pub(crate) fn with_p2p(
    mut comm: Communicator,
    p2p: bool,
    config: &Config,
) -> Result<(Communicator, Option<P2p>), Error> {
    if !p2p {
        return Ok((comm, None));
    }
    let p2p_comm = comm.split(Some(0), 0, config)?;
    let p2p = p2p_comm.map(P2p::new).transpose()?;
    Ok((comm, p2p))
}

/// Creates a communicator. Blocks until all ranks have joined, or until the timeout.
fn create(
    py: Python<'_>,
    p2p: bool,
    config: Config,
    work: impl FnOnce(&Config) -> Result<Communicator, Error> + Send + 'static,
) -> PyResult<CommunicatorHandle> {
    check_fork()?;
    register_fork_handler();
    let result = run_on_thread(py, move || work(&config).and_then(|comm| with_p2p(comm, p2p, &config)))?;
    let (comm, p2p) = result.map_err(|error| to_exception(&error))?;
    Ok(CommunicatorHandle { state: State::new(comm, p2p), options: CallOptions::default() })
}

/// Creates the unique id of a new job, and starts its rendezvous in this process.
///
/// One of the job's ranks must be this process. With `for_channel` the id is of use only to processes that
/// have the secret of this one's environment, if there is one.
#[pyfunction]
#[pyo3(signature = (for_channel=false))]
pub(crate) fn unique_id(py: Python<'_>, for_channel: bool) -> PyResult<Vec<u8>> {
    check_fork()?;
    register_fork_handler();
    let create = || match for_channel {
        true => UniqueId::create_for_channel(),
        false => UniqueId::create().map(|id| *id.as_bytes()),
    };
    Ok(py.detach(create).map_err(|error| to_exception(&error.into()))?.to_vec())
}

/// Parses the bytes of a unique id.
pub(crate) fn parse_id(bytes: &[u8]) -> PyResult<UniqueId> {
    UniqueId::from_bytes(id_bytes(bytes)?).map_err(|error| to_exception(&error.into()))
}

fn id_bytes(bytes: &[u8]) -> PyResult<[u8; UniqueId::BYTES]> {
    bytes.try_into().map_err(|_| {
        invalid_argument(format!("a unique id has {} bytes, not {}", UniqueId::BYTES, bytes.len()))
    })
}

/// Creates a communicator of `size` ranks, which all call this with the same id; waits for them.
///
/// `for_channel` is as for [`unique_id`].
#[pyfunction]
#[pyo3(signature = (uid, rank, size, timeout=None, options=None, p2p=true, for_channel=false))]
#[allow(clippy::too_many_arguments, reason = "keywords in Python")]
pub(crate) fn join(
    py: Python<'_>,
    uid: &[u8],
    rank: i64,
    size: i64,
    timeout: Option<f64>,
    options: Option<BTreeMap<String, String>>,
    p2p: bool,
    for_channel: bool,
) -> PyResult<CommunicatorHandle> {
    let id = match for_channel {
        true => UniqueId::from_channel(id_bytes(uid)?).map_err(|error| to_exception(&error.into()))?,
        false => parse_id(uid)?,
    };
    let config = config(timeout, options)?;
    let (Ok(rank), Ok(size)) = (u32::try_from(rank), u32::try_from(size)) else {
        return Err(invalid_argument(format!(
            "rank {rank} of {size} is out of range; ranks are numbered from 0"
        )));
    };
    create(py, p2p, config, move |config| Communicator::from_unique_id(&id, rank, size, config))
}

/// Creates the communicator of the launcher's job, described by the environment; waits for the other ranks.
#[pyfunction]
#[pyo3(signature = (timeout=None, options=None, p2p=true))]
pub(crate) fn join_from_env(
    py: Python<'_>,
    timeout: Option<f64>,
    options: Option<BTreeMap<String, String>>,
    p2p: bool,
) -> PyResult<CommunicatorHandle> {
    let config = config(timeout, options)?;
    create(py, p2p, config, Communicator::from_env_with)
}
