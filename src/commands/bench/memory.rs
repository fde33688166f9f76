//! Check that the machine has enough memory for the requested buffers.

use super::{super::CommandError, args::Transport, job::Job, operation::Form};
use std::fs;

/// Rejects a job whose buffers exceed the available memory, before any of them is touched.
pub(super) fn check(job: &Job) -> Result<(), CommandError> {
    let location = if job.transport == Transport::Local { "in this process" } else { "on this machine" };
    check_bytes(required_bytes(job), job.ranks, job.largest_bytes(), location)
}

/// Rejects buffers of `required_bytes` for all ranks and sizes up to `largest` if they exceed the available
/// memory.
pub(in crate::commands) fn check_bytes(
    required_bytes: u128,
    ranks: u32,
    largest: u64,
    location: &str,
) -> Result<(), CommandError> {
    let Some(available) = available().filter(|available| required_bytes > u128::from(*available)) else {
        return Ok(());
    };
    Err(CommandError::new(format_args!(
        "the buffers of {ranks} ranks {location} take {} for sizes up to {}, and {} are available; lower -e \
        or --ranks",
        format_bytes(required_bytes),
        format_bytes(largest.into()),
        format_bytes(available.into())
    )))
}

/// Returns the bytes of all ranks' buffers at the largest size.
fn required_bytes(job: &Job) -> u128 {
    let op = job.op.operation;
    let blocks = u128::from(op.blocks(job.ranks).max(1));
    let (input, output) = op.input_and_output_blocks(job.ranks);
    let (input, output) = (u128::from(input), u128::from(output));
    let largest = u128::from(job.largest_bytes());
    let larger = input.max(output);
    let per_rank = match job.forms.as_slice() {
        [Form::InPlace] => larger,
        [Form::OutOfPlace] => input + output,
        _ => input + larger,
    };
    // Each call of a group has its own output.
    let outputs = if job.forms == [Form::OutOfPlace] { output } else { larger };
    let per_rank = per_rank + outputs * u128::from(job.calls - 1);
    u128::from(job.ranks) * largest * per_rank / blocks
}

fn format_bytes(bytes: u128) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if value.fract() == 0.0 {
        format!("{value} {}", units[unit])
    } else {
        format!("{value:.1} {}", units[unit])
    }
}

/// Returns the memory available without swapping, if the system reports it.
fn available() -> Option<u64> {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| available_in(&text));
    let cgroup = || {
        let number = |name| {
            let text = fs::read_to_string(format!("/sys/fs/cgroup/memory.{name}")).ok()?;
            text.trim().parse::<u64>().ok()
        };
        Some(number("max")?.saturating_sub(number("current")?))
    };
    machine.into_iter().chain(cgroup()).min()
}

/// Parses `MemAvailable` in Linux's meminfo.
fn available_in(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_found_in_meminfo() {
        let text = "MemTotal:       24593464 kB\nMemFree: 1 kB\nMemAvailable:   23000000 kB\n";
        assert_eq!(available_in(text), Some(23_000_000 << 10));
        assert_eq!(available_in("MemTotal: 1 kB\n"), None);
    }

    #[test]
    fn amounts_are_readable() {
        assert_eq!(format_bytes(512), "512 B");
        assert_eq!(format_bytes(64 << 20), "64 MiB");
        assert_eq!(format_bytes(3 << 39), "1.5 TiB");
    }
}
