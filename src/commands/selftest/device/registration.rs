//! Probes of memory registration: how many regions, which memory, and how long.
//!
//! # Safety
//! Regions cover mappings that outlive them; nothing is posted, so no device accesses them.

use super::{finding, open, queues::mapping, tried};
use crate::commands::selftest::{
    finding::{Probed, Trouble, broken},
    message::step,
};
use std::time::Instant;
use transport::{
    memory::Mapping,
    verbs::{Access, Cause, Domain, Library, VerbsError},
};

/// Bytes of a region of the probe that counts them.
const SMALL: usize = 64 << 10;
/// Address boundary that no region crosses.
const LINE: u64 = 1 << 32;
/// Longest region: a segment of the slab.
const SEGMENT: usize = 256 << 20;

/// Registers as many regions as the driver counts on, one more, and all of them again.
pub(super) fn regions(library: &Library, device: &str, quick: bool) -> Probed {
    let (domain, found) = open(library, device)?;
    let wanted = tried(found.max_regions, quick) as usize;
    let memory = mapping(SMALL * (wanted + 1))?;
    let mut details = Vec::new();
    for round in ["first", "second"] {
        step(format!("registering {wanted} regions, for the {round} time"));
        let at = |index: usize| memory.as_ptr().wrapping_add(index * SMALL);
        let mut made = Vec::new();
        for index in 0..wanted {
            // SAFETY: the mapping has room, and is dropped after the regions.
            match unsafe { domain.register(at(index), SMALL, Access::Local) } {
                Ok(region) => made.push(region),
                Err(error) => return Err(too_few(made.len(), wanted, round, &error)),
            }
        }
        if wanted == found.max_regions as usize {
            step("registering one region too many");
            // SAFETY: as above.
            match unsafe { domain.register(at(wanted), SMALL, Access::Local) } {
                Ok(_) => details.push("the device has more".to_owned()),
                Err(error) => details.push(format!("one more: {error}")),
            }
        }
    }
    finding(format!("{wanted} at a time, twice"), details)
}

fn too_few(made: usize, wanted: usize, round: &str, error: &VerbsError) -> Trouble {
    let text = format!("only {made} of {wanted} for the {round} time: {error}");
    let remedy = error.cause().map_or(Cause::Regions.remedy(), Cause::remedy);
    Trouble::Fail(text, remedy.to_owned())
}

/// Registers private and shared pages of several lengths, and pages on both sides of a 4 GiB line.
pub(super) fn kinds(library: &Library, device: &str, quick: bool) -> Probed {
    let (domain, _) = open(library, device)?;
    let page = rustix::param::page_size();
    let lengths: &[usize] =
        if quick { &[16 << 10, 1 << 20] } else { &[16 << 10, 1 << 20, 64 << 20, SEGMENT] };
    let mut details = vec![format!("page size: {page} bytes")];
    for &bytes in lengths {
        let private = mapping(bytes)?;
        register(&domain, private.as_ptr(), bytes, "private pages", &mut details)?;
        let shared = Mapping::shared_for_device(bytes, 0, LINE);
        let (shared, _fd) =
            shared.map_err(|error| broken(format!("shared pages of {bytes} bytes: {error}")))?;
        register(&domain, shared.as_ptr(), bytes, "shared pages", &mut details)?;
    }
    at_line(&domain, &mut details)?;
    note_unaligned(&domain, &mut details)?;
    let longest = lengths.last().copied().unwrap_or_default();
    finding(format!("private and shared pages up to {} MiB, up to a 4 GiB line", longest >> 20), details)
}

/// Registers a MiB that ends at a 4 GiB line, and one that begins there.
fn at_line(domain: &Domain, details: &mut Vec<String>) -> Result<(), Trouble> {
    let memory = Mapping::private(LINE as usize + (4 << 20));
    let Ok(memory) = memory else {
        details.push("no address space for a 4 GiB line".to_owned());
        return Ok(());
    };
    let first = memory.as_ptr() as usize;
    let to_line = first.next_multiple_of(LINE as usize) - first;
    let (before, after) = (to_line.checked_sub(1 << 20), to_line);
    if let Some(before) = before {
        let start = memory.as_ptr().wrapping_add(before);
        register(domain, start, 1 << 20, "pages that end at a 4 GiB line", details)?;
    }
    if after + (1 << 20) <= memory.len() {
        let start = memory.as_ptr().wrapping_add(after);
        register(domain, start, 1 << 20, "pages that begin at a 4 GiB line", details)?;
    }
    Ok(())
}

/// Notes whether memory that begins and ends within pages can be registered; nothing relies on it.
fn note_unaligned(domain: &Domain, details: &mut Vec<String>) -> Result<(), Trouble> {
    let memory = mapping(1 << 20)?;
    step("registering 100,000 bytes at an odd address");
    // SAFETY: the range lies in the mapping, which is dropped after the region.
    let registered = unsafe { domain.register(memory.as_ptr().wrapping_add(777), 100_000, Access::Local) };
    details.push(match registered {
        Ok(_) => "100,000 bytes at an odd address: registered".to_owned(),
        Err(error) => format!("100,000 bytes at an odd address: {error}"),
    });
    Ok(())
}

/// Registers memory for a moment.
fn register(
    domain: &Domain,
    start: *mut u8,
    bytes: usize,
    kind: &str,
    details: &mut Vec<String>,
) -> Result<(), Trouble> {
    step(format!("registering {bytes} bytes of {kind}"));
    let began = Instant::now();
    // SAFETY: the callers' mappings have room and outlive this call, in which the region is dropped.
    let region = unsafe { domain.register(start, bytes, Access::Local) };
    let region = region.map_err(|error| match error.cause() {
        Some(cause @ (Cause::LockedMemory | Cause::Regions)) => {
            Trouble::Fail(format!("{bytes} bytes of {kind}: {error}"), cause.remedy().to_owned())
        }
        _ => broken(format!("{bytes} bytes of {kind}: {error}")),
    })?;
    let us = began.elapsed().as_micros();
    details.push(format!("{bytes} bytes of {kind}: {us} us, remote key {}", region.rkey()));
    Ok(())
}
