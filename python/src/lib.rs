//! The Python face of tbccl: the extension module `tbccl._native`.
//!
//! It is what `python/tbccl/` stands on, which is what people see. A call checks what Python passed, lets go of Python's
//! lock, and delegates to the crate `tbccl`. Memory is passed by address, and whoever calls keeps it alive; or as objects,
//! which are seen by way of `view`.
//!
//! | module | what |
//! |---|---|
//! | `comm`, `join`, `members` | communicators: their calls, how they are made, and made of others |
//! | `calls`, `numbers` | calls as Python describes them |
//! | `request` | calls that are waited for later |
//! | `view`, `memory` | Python objects seen as elements, and registered memory as a Python object |
//! | `errors`, `interrupt` | exceptions, signals, forks |
//!
//! Nothing here knows how a call is carried out.

mod calls;
mod comm;
mod errors;
mod interrupt;
mod issued;
mod join;
mod members;
mod memory;
mod numbers;
mod protocols;
mod request;
mod state;
mod view;

use pyo3::prelude::*;

/// The extension module.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("UNIQUE_ID_BYTES", tbccl::UniqueId::BYTES)?;
    numbers::add_to(module)?;
    memory::add_to(module)?;
    module.add_class::<view::View>()?;
    module.add_function(wrap_pyfunction!(view::view, module)?)?;
    module.add_function(wrap_pyfunction!(view::view_as, module)?)?;
    module.add_class::<comm::Communicator>()?;
    module.add_class::<join::Made>()?;
    module.add_class::<request::Request>()?;
    module.add_function(wrap_pyfunction!(join::unique_id, module)?)?;
    module.add_function(wrap_pyfunction!(join::join, module)?)?;
    module.add_function(wrap_pyfunction!(join::join_from_env, module)?)?;
    module.add_function(wrap_pyfunction!(members::split, module)?)?;
    module.add_function(wrap_pyfunction!(members::shrink, module)?)?;
    module.add_function(wrap_pyfunction!(members::grow, module)?)?;
    module.add_function(wrap_pyfunction!(members::grow_id, module)?)?;
    module.add_function(wrap_pyfunction!(comm::close_all, module)?)?;
    Ok(())
}
