//! Communicators made of others: of some of their ranks, of those that are left, of more.

use crate::{
    comm::Communicator,
    errors::{invalid, raised},
    interrupt::{aside, check_fork},
    join::{Made, config, id_of, with_mail},
    state::State,
};
use pyo3::prelude::*;
use std::{collections::BTreeMap, sync::Arc};
use tbccl::{CallOptions, Config, Error, Rank};

/// Makes a communicator of one. Whoever is interrupted meanwhile will not do its part, so the old one is aborted then.
fn make_of(
    py: Python<'_>,
    state: &Arc<State>,
    (p2p, config): (bool, Config),
    work: impl FnOnce(&mut tbccl::Communicator, &Config) -> Result<Option<tbccl::Communicator>, Error>
    + Send
    + 'static,
) -> PyResult<Option<Made>> {
    check_fork()?;
    let shared = state.shared.clone();
    let made = aside(py, move || {
        let made = shared.with(|old| work(old, &config)).and_then(|made| made)?;
        made.map(|comm| with_mail(comm, p2p, &config)).transpose()
    });
    let made = made.inspect_err(|_| py.detach(|| state.abort()))?;
    let made = made.map_err(|error| raised(&error))?;
    Ok(made.map(|(comm, p2p)| Made { state: State::new(comm, p2p), options: CallOptions::default() }))
}

/// Makes new communicators of one, of all ranks of a color each. All ranks call it; those without a color get None.
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
) -> PyResult<Option<Made>> {
    let color = color.map(|color| {
        u32::try_from(color).map_err(|_| invalid(format!("color is {color}; it is at least 0, or None")))
    });
    let (color, config) = (color.transpose()?, config(timeout, options)?);
    make_of(py, &comm.get().state, (p2p, config), move |old, config| old.split(color, key, config))
}

/// Makes a communicator of all ranks but these.
#[pyfunction]
#[pyo3(signature = (comm, without, timeout=None, options=None, p2p=true))]
pub(crate) fn shrink(
    py: Python<'_>,
    comm: &Bound<'_, Communicator>,
    without: Vec<u32>,
    timeout: Option<f64>,
    options: Option<BTreeMap<String, String>>,
    p2p: bool,
) -> PyResult<Option<Made>> {
    let config = config(timeout, options)?;
    let without: Vec<Rank> = without.into_iter().map(Rank).collect();
    make_of(py, &comm.get().state, (p2p, config), move |old, config| old.shrink(&without, config).map(Some))
}

/// Makes a communicator of these ranks and new ones, up to a size.
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
) -> PyResult<Option<Made>> {
    let id = uid.map(id_of).transpose()?;
    let config = config(timeout, options)?;
    make_of(py, &comm.get().state, (p2p, config), move |old, config| {
        old.grow(id.as_ref(), size, config).map(Some)
    })
}

/// Makes an id with which a communicator grows.
#[pyfunction]
pub(crate) fn grow_id(py: Python<'_>, comm: &Bound<'_, Communicator>) -> PyResult<Vec<u8>> {
    check_fork()?;
    let shared = comm.get().state.shared.clone();
    let id = py.detach(move || shared.with(tbccl::Communicator::grow_id).and_then(|id| id));
    Ok(id.map_err(|error| raised(&error))?.as_bytes().to_vec())
}
