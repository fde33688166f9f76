//! Memory that links work on.
//!
//! [`Mapping`] is a range of pages. An [`Arena`] is one rank's mapping, divided into a board of words, rings and
//! a slab; the rank's peers have it mapped too. [`Slab`] hands out ranges of the arena's last part, or of any
//! mapping that a driver has made known to its device, as [`Registered`] memory: links move it without copying. [`Span`] and [`SpanMut`] name bytes of any memory.

mod arena;
mod board;
mod mapping;
mod ranges;
mod slab;

pub use crate::span::{Span, SpanMut};
pub use arena::{Arena, ArenaLayout};
pub use board::Board;
pub use mapping::Mapping;
pub use slab::{Registered, Slab};
