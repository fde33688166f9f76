//! The architecture, checked against the sources and cargo's metadata.
//!
//! | module | subject |
//! |---|---|
//! | `circles` | circles of dependencies between modules |
//! | `clocks` | clocks that can be set |
//! | `edges` | dependencies between packages, and unsafe code |
//! | `licences` | licences of crates |
//! | `packages` | metadata of packages, and the table of dependencies |
//! | `pages` | links of pages, and the chapters of the book |
//! | `prose` | lengths of lines, and how comments begin |
//! | `sources` | helpers: source files without comments and strings |
//! | `symptoms` | tests that a page of the documentation names |

mod circles;
mod clocks;
mod edges;
mod licences;
mod packages;
mod pages;
mod prose;
mod sources;
mod symptoms;
