//! The architecture, held against the sources and cargo's metadata.

mod circles;
mod edges;
mod sources;
