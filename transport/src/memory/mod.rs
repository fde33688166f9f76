//! Memory that links work on.
//!
//! - [`Mapping`]: a range of pages.
//! - [`Arena`]: one rank's mapping, divided into a [`Board`], rings and a slab; the rank's peers map it too.
//! - [`Slab`]: an allocator of [`Registered`] memory, which links move without copies. It allocates ranges of
//!   an arena's last part, or of any mapping that a driver has registered with its device.
//! - [`Span`] and [`SpanMut`]: bytes of any memory.
//! - [`Words`]: words of memory, or of a file that survives the process.

mod arena;
mod blocks;
mod board;
mod mapping;
#[cfg(all(test, loom))]
mod models;
mod ranges;
mod slab;
mod words;

pub use crate::span::{Span, SpanMut};
pub use arena::{Arena, ArenaLayout};
pub use board::Board;
pub use mapping::Mapping;
pub use slab::{Registered, Slab};
pub use words::Words;
