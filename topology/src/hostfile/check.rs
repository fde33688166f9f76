//! Checks of names, numbers and variables that all hostfile formats share.

use super::{Host, MAX_HOSTS};
use crate::{DeviceMatrix, MatrixError};

/// The backends of MLX's launcher.
const BACKENDS: [&str; 5] = ["ring", "mpi", "nccl", "jaccl", "jaccl-ring"];

/// The valid name that is most like what was given, as the end of a sentence.
pub(super) fn nearest(given: &str, known: &[&str]) -> String {
    let lower = given.to_lowercase();
    let likeness = |name: &&&str| strsim::jaro_winkler(&lower, &name.to_lowercase());
    let best =
        known.iter().filter(|name| likeness(name) > 0.7).max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
    match best {
        Some(name) => format!("did you mean `{name}`?"),
        None => format!("there is {}", known.join(", ")),
    }
}

/// A name, an address or an alias for ssh, which must not take it for an option.
pub(super) fn host_name(name: &str) -> Result<String, String> {
    let strange =
        name.chars().find(|c| c.is_whitespace() || c.is_control() || "'\"`$;&|<>\\(){}*?!,#".contains(*c));
    match (name.chars().next(), strange) {
        (None, _) => Err("a host's name is empty; write the name or the address that ssh takes".to_owned()),
        (Some('-'), _) => Err(format!(
            "a host's name can't begin with `-`, as `{name}` does; write the name that ssh takes"
        )),
        (_, Some(strange)) => Err(format!(
            "a host's name can't have {strange:?} in it; write the name or the address that ssh takes"
        )),
        _ if name.len() > 255 => Err("a host's name has 255 characters at most".to_owned()),
        _ => Ok(name.to_owned()),
    }
}

/// An address or a name, without a port.
pub(super) fn address(text: &str) -> Result<String, String> {
    if text.parse::<core::net::IpAddr>().is_ok() {
        return Ok(text.to_owned());
    }
    let is_name =
        !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'));
    let is_number = text.chars().all(|c| c.is_ascii_digit() || c == '.');
    if is_name && !is_number && text.len() <= 253 {
        return Ok(text.to_owned());
    }
    Err(format!("`{text}` is not an address; write e.g. 10.0.0.1, fd00::1 or mac0.local, without a port"))
}

/// A number of slots.
pub(super) fn slots(number: Option<u64>, given: &str) -> Result<u32, String> {
    match number {
        Some(0) => Err("0 slots; leave the host out, or give it 1 at least".to_owned()),
        Some(number @ 1..=65536) => Ok(number as u32),
        _ => Err(format!("`{given}` is not a number of slots; write a whole number from 1 to 65536")),
    }
}

/// `KEY=VALUE`.
pub(super) fn assignment(text: &str) -> Result<(String, String), String> {
    let Some((key, value)) = text.split_once('=') else {
        return Err(format!("`{text}` is not a variable with its value; write KEY=VALUE"));
    };
    variable(key)?;
    Ok((key.to_owned(), value.to_owned()))
}

/// A variable's name.
pub(super) fn variable(key: &str) -> Result<(), String> {
    if key.is_empty() || key.chars().any(|c| c == '=' || c.is_whitespace() || c.is_control()) {
        return Err(format!("`{key}` is not a variable's name; write e.g. TBCCL_TIMEOUT"));
    }
    Ok(())
}

/// Checks the name of the job's communication backend.
pub(super) fn backend(name: &str) -> Result<String, String> {
    if BACKENDS.contains(&name) {
        return Ok(name.to_owned());
    }
    Err(format!("unknown backend `{name}`; {}", nearest(name, &BACKENDS)))
}

/// Checks that no earlier host has this name.
pub(super) fn check_unique(hosts: &[Host], name: &str) -> Result<(), String> {
    if hosts.iter().any(|host| host.name == name) {
        return Err(format!("`{name}` is there twice; name it once, with the number of ranks as its slots"));
    }
    check_room(hosts.len())
}

/// Checks that there is room for another host.
pub(super) fn check_room(hosts: usize) -> Result<(), String> {
    if hosts < MAX_HOSTS { Ok(()) } else { Err(format!("more than {MAX_HOSTS} hosts; split the file")) }
}

/// Checks that a host's maximum is at least its slots.
pub(super) fn check_maximum(host: &Host) -> Result<(), String> {
    match (host.slots, host.max_slots) {
        (Some(slots), Some(max_slots)) if max_slots < slots => Err(format!(
            "`{}` has {slots} slots, and {max_slots} at most; raise the maximum, or lower the slots",
            host.name
        )),
        _ => Ok(()),
    }
}

/// The matrix of devices, from a row for each host; none when no host has any.
pub(super) fn devices(hosts: &[Host], rows: Vec<Vec<Vec<String>>>) -> Result<Option<DeviceMatrix>, String> {
    if rows.iter().all(|row| row.iter().all(Vec::is_empty)) {
        return Ok(None);
    }
    for (host, row) in hosts.iter().zip(&rows) {
        if row.len() != hosts.len() {
            return Err(format!(
                "`{}` has {} entries in `rdma` for {} hosts; write one for each host, null for itself and \
                 where no cable leads",
                host.name,
                row.len(),
                hosts.len()
            ));
        }
    }
    DeviceMatrix::from_rows(rows).map(Some).map_err(|e| describe(&e, hosts))
}

/// Describes an error of a matrix, with host names for rows and columns.
fn describe(error: &MatrixError, hosts: &[Host]) -> String {
    let names: Vec<String> =
        (0..).zip(hosts).map(|(row, host)| format!("{row} is `{}`", host.name)).collect();
    format!("{error} (of rows and columns, {})", names.join(", "))
}
