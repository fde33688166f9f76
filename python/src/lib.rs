//! The extension module `tbccl._native`: Python bindings of the crate `tbccl`.
//!
//! The package `python/tbccl/`, which programs import, is written on top of this module. A call checks its
//! arguments, releases the GIL and delegates to the crate `tbccl`. Memory is passed by address, and the
//! caller keeps it alive; or as an object, whose elements `view` locates.
//!
//! | module | purpose |
//! |---|---|
//! | `comm`, `join`, `membership` | communicators: their calls; creation; split, shrink and grow |
//! | `calls`, `numbers` | conversion of Python arguments into call descriptions |
//! | `request`, `in_flight`, `state` | asynchronous calls, and the objects that they keep alive |
//! | `elements` | element types as other libraries describe them |
//! | `view`, `memory`, `protocols` | elements of Python objects, and registered memory as a Python object |
//! | `errors` | exceptions |
//! | `log` | events for Python's `logging` |
//! | `interrupt`, `waits` | signals and forks; waits that signal handlers interrupt |
//!
//! This crate does not know how a call is executed.

mod calls;
mod comm;
mod elements;
mod errors;
mod in_flight;
mod interrupt;
mod join;
mod log;
mod membership;
mod memory;
mod numbers;
mod protocols;
mod request;
mod state;
mod view;
mod waits;

use pyo3::prelude::*;

/// The extension module `tbccl._native`.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("UNIQUE_ID_BYTES", tbccl::UniqueId::BYTES)?;
    numbers::register(module)?;
    elements::register(module)?;
    memory::register(module)?;
    module.add_class::<view::View>()?;
    module.add_function(wrap_pyfunction!(view::view, module)?)?;
    module.add_function(wrap_pyfunction!(view::view_as, module)?)?;
    module.add_class::<comm::Communicator>()?;
    module.add_class::<join::CommunicatorHandle>()?;
    module.add_class::<request::Request>()?;
    module.add_function(wrap_pyfunction!(join::unique_id, module)?)?;
    module.add_function(wrap_pyfunction!(join::join, module)?)?;
    module.add_function(wrap_pyfunction!(join::join_from_env, module)?)?;
    module.add_function(wrap_pyfunction!(membership::split, module)?)?;
    module.add_function(wrap_pyfunction!(membership::shrink, module)?)?;
    module.add_function(wrap_pyfunction!(membership::grow, module)?)?;
    module.add_function(wrap_pyfunction!(membership::grow_id, module)?)?;
    module.add_function(wrap_pyfunction!(log::queue_events, module)?)?;
    module.add_function(wrap_pyfunction!(log::take_events, module)?)?;
    module.add_function(wrap_pyfunction!(comm::close_all, module)?)?;
    Ok(())
}
