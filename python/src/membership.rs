//! Communicators derived from others: split, shrink and grow.

use crate::{
    comm::Communicator,
    errors::{invalid_argument, to_exception},
    join::{CommunicatorHandle, config, parse_id, with_p2p},
    state::State,
};
use pyo3::prelude::*;
use std::{collections::BTreeMap, sync::Arc};
use tbccl::{CallOptions, Config, Error, Rank};

/// Derives a communicator from another.
///
/// An interrupted rank will not do its part in the operation, so the parent communicator is aborted.
fn derive(
    py: Python<'_>,
    state: &Arc<State>,
    (p2p, config): (bool, Config),
    work: impl FnOnce(&mut tbccl::Communicator, &Config) -> Result<Option<tbccl::Communicator>, Error>
    + Send
    + 'static,
) -> PyResult<Option<CommunicatorHandle>> {
    let made = state.run_on_thread(py, move |shared| {
        let made = shared.with(|old| work(old, &config)).and_then(|made| made)?;
        made.map(|comm| with_p2p(comm, p2p, &config)).transpose()
    })?;
    let made = made.map_err(|error| to_exception(&error))?;
    Ok(made.map(|(comm, p2p)| CommunicatorHandle {
        state: State::new(comm, p2p),
        options: CallOptions::default(),
    }))
}

/// Splits a communicator into one per color. All ranks call it; a rank without a color gets None.
#[pyfunction]
#[pyo3(signature = (comm, color, key=0, timeout=None, options=None, p2p=true))]
pub(crate) fn split(
    py: Python<'_>,
    comm: &Bound<'_, Communicator>,
    color: Option<i64>,
    key: i32,
    timeout: Option<f64>,
    options: Option<BTreeMap<String, String>>,
    p2p: bool,
) -> PyResult<Option<CommunicatorHandle>> {
    let color = color.map(|color| {
        u32::try_from(color)
            .map_err(|_| invalid_argument(format!("color is {color}; it must be at least 0, or None")))
    });
    let (color, config) = (color.transpose()?, config(timeout, options)?);
    derive(py, &comm.get().state, (p2p, config), move |old, config| old.split(color, key, config))
}

/// Creates a communicator of all ranks except `without`.
#[pyfunction]
#[pyo3(signature = (comm, without, timeout=None, options=None, p2p=true))]
pub(crate) fn shrink(
    py: Python<'_>,
    comm: &Bound<'_, Communicator>,
    without: Vec<u32>,
    timeout: Option<f64>,
    options: Option<BTreeMap<String, String>>,
    p2p: bool,
) -> PyResult<Option<CommunicatorHandle>> {
    let config = config(timeout, options)?;
    let without: Vec<Rank> = without.into_iter().map(Rank).collect();
    derive(py, &comm.get().state, (p2p, config), move |old, config| old.shrink(&without, config).map(Some))
}

/// Creates a communicator of `size` ranks: those of `comm`, and new ones.
#[pyfunction]
#[pyo3(signature = (comm, uid, size, timeout=None, options=None, p2p=true))]
pub(crate) fn grow(
    py: Python<'_>,
    comm: &Bound<'_, Communicator>,
    uid: Option<&[u8]>,
    size: u32,
    timeout: Option<f64>,
    options: Option<BTreeMap<String, String>>,
    p2p: bool,
) -> PyResult<Option<CommunicatorHandle>> {
    let id = uid.map(parse_id).transpose()?;
    let config = config(timeout, options)?;
    derive(py, &comm.get().state, (p2p, config), move |old, config| {
        old.grow(id.as_ref(), size, config).map(Some)
    })
}

/// Creates the id with which a communicator grows.
#[pyfunction]
pub(crate) fn grow_id(py: Python<'_>, comm: &Bound<'_, Communicator>) -> PyResult<Vec<u8>> {
    Ok(comm.get().state.with(py, tbccl::Communicator::grow_id)?.as_bytes().to_vec())
}
