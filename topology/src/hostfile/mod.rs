//! Hostfiles: the hosts of a job, and the slots, addresses and devices of each.
//!
//! [`Hostfile::parse`] reads a file's bytes. It recognizes three formats by their content:
//!
//! - MLX's JSON: a list of hosts, or an object with `hosts`, `backend` and `envs`.
//! - Open MPI's text: a host per line, `mac0 slots=4 max-slots=8`, with comments; `mac0:4` is short for
//!   slots.
//! - tbccl's TOML: `[[host]]` tables with all of the above, devices named by peer, and variables per host.
//!
//! Invariants of a parsed file: it has at least one host; names are unique; slots are positive and within the
//! maximum; names, addresses, devices and variables are well-formed; the device matrix, if there is one, has
//! a row for each host and both ends of every cable.
//!
//! Errors give line, column and remedy; the caller adds the name of the file. This module does not look up
//! names.

mod check;
mod error;
mod json;
mod native;
#[cfg(test)]
mod tests;
mod text;

pub use error::HostfileError;

use crate::DeviceMatrix;
use error::Position;

/// Most hosts that a file may name: more than a job has ranks.
const MAX_HOSTS: usize = 4096;

/// The contents of a hostfile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hostfile {
    /// The format in which it is written.
    pub format: Format,
    /// The hosts, in the order of the file.
    pub hosts: Vec<Host>,
    /// The communication backend of the job's programs, as MLX's launcher names it: `ring`, `mpi`, `nccl`,
    /// `jaccl` or `jaccl-ring`.
    pub backend: Option<String>,
    /// Variables for every rank, in the order of the file: the last of a name counts.
    pub env: Vec<(String, String)>,
    /// The RDMA devices between each two hosts, by their places in `hosts`.
    pub devices: Option<DeviceMatrix>,
}

/// How a hostfile is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// MLX's JSON, in either shape.
    Json,
    /// Open MPI's lines.
    Text,
    /// Ours.
    Toml,
}

/// A host of a hostfile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// The destination for ssh: a name, an address or an alias, with `user@` before it if need be.
    pub name: String,
    /// Addresses or names at which the other hosts reach it, the best first. May be empty.
    pub addresses: Vec<String>,
    /// How many ranks it is to have; at least 1. Unknown where nothing is said.
    pub slots: Option<u32>,
    /// How many ranks it may have at most; at least `slots`.
    pub max_slots: Option<u32>,
    /// Variables for the ranks of this host.
    pub env: Vec<(String, String)>,
}

impl Host {
    /// A host of which only the name is known.
    pub fn new(name: impl Into<String>) -> Host {
        Host { name: name.into(), ..Host::default() }
    }
}

impl Hostfile {
    /// Reads a file's bytes in whichever of the formats they are.
    ///
    /// # Errors
    /// [`HostfileError`] with the line and the column of the first thing that is wrong.
    pub fn parse(bytes: &[u8]) -> Result<Hostfile, HostfileError> {
        let text = std::str::from_utf8(bytes).map_err(|e| {
            let read = String::from_utf8_lossy(&bytes[..e.valid_up_to()]);
            Position::after(&read).error("this byte is not UTF-8; save the file as plain UTF-8 text")
        })?;
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        if let Some(at) = text.find('\0') {
            return Err(Position::of(text, at).error("a zero byte; save the file as plain UTF-8 text"));
        }
        let file = match detect_format(text) {
            Some(Format::Json) => json::parse(text)?,
            Some(Format::Toml) => native::parse(text)?,
            Some(Format::Text) => text::parse(text)?,
            None => {
                let nothing = "the file names no host; write a line for each, e.g. `mac0 slots=1`";
                return Err(Position::START.error(nothing));
            }
        };
        Ok(file)
    }

    /// Reads a list of hosts as people type it: `a,b:2,c`. Equal names add up.
    ///
    /// # Errors
    /// [`HostfileError`], on line 1.
    pub fn from_list(list: &str) -> Result<Hostfile, HostfileError> {
        text::parse_list(list)
    }

    /// The place of a host in `hosts`.
    #[must_use]
    pub fn position_of(&self, name: &str) -> Option<usize> {
        self.hosts.iter().position(|host| host.name == name)
    }
}

/// The format of a text by its first significant line; none when there is no such line.
fn detect_format(text: &str) -> Option<Format> {
    let line = text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#'))?;
    if line.starts_with('{') {
        return Some(Format::Json);
    }
    if let Some(rest) = line.strip_prefix('[') {
        if rest.split_once(']').is_some_and(|(inside, _)| inside.parse::<core::net::Ipv6Addr>().is_ok()) {
            return Some(Format::Text);
        }
        // `[env]` and `[[host]]` are headers of tables; a list goes on with something that is no bare word.
        let word = rest.trim_start_matches('[').trim_start();
        let is_header = word.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') && rest.contains(']');
        return Some(if is_header { Format::Toml } else { Format::Json });
    }
    let key = line.split('=').next().unwrap_or_default().trim_end();
    let is_key = key.len() < line.len()
        && !key.starts_with('-')
        && key.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '"'));
    Some(if is_key { Format::Toml } else { Format::Text })
}
