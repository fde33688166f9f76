//! Inventories: the ports, cables, interfaces and RDMA devices of machines.
//!
//! A program that inspects a machine makes a [`Recording`]: the files that it has read and the output of the
//! system's commands, as text. [`Inventory::read`] turns a recording into an [`Inventory`], which has the
//! same form for Linux and macOS, and travels between hosts as JSON. [`CableGraph`] matches the ports of
//! several inventories.
//!
//! | module | purpose |
//! |---|---|
//! | `cables` | ports of several machines, matched by their identifiers |
//! | `linux` | reader of Linux's files |
//! | `macos` | reader of the output of macOS's commands |
//! | `model` | the data type |
//! | `processors` | cores, caches and memories, and the cores near devices |
//! | `read` | recordings turned into inventories |
//! | `recording` | texts of a machine, and their form as one file |
//!
//! Invariants: reading never fails. A text that is missing or malformed is named in [`Inventory::problems`],
//! and the values that it would have had are unknown. The same recording always gives the same inventory.
//!
//! This crate does not open files or start commands, and judges nothing: it only says what is there.
#![forbid(unsafe_code)]

mod cables;
mod linux;
mod macos;
mod model;
mod processors;
mod read;
mod recording;

pub use cables::{Cable, CableGraph, End, Shape};
pub use model::{
    Address, Device, DeviceFault, Generation, Gid, Interface, InterfaceKind, Inventory, InventoryError,
    Memory, Partner, Port, RdmaSwitch, Route, System, VERSION, Verbs,
};
pub use processors::{HWLOC, Near, NearKind, Part, PartKind, Processors, parse_cpu_list, pci_address};
pub use recording::{Recording, RecordingError};
