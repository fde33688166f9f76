//! Probes of queue pairs and completion queues that are not connected.
//!
//! # Safety
//! Receives are posted into memory that is mapped and registered until after the queue pair is dropped, and
//! that nothing reads.

use super::{finding, open, tried};
use crate::commands::selftest::{
    finding::{Probed, Trouble, broken},
    message::step,
    pair::{LONG_BYTES, LONG_RECEIVES, SHORT_BYTES, SHORT_RECEIVES},
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use transport::{
    memory::Mapping,
    verbs::{
        Access, Cause, Completion, DeviceCapabilities, Domain, Library, LocalRun, POLL_BATCH, QueuePairSpec,
        VerbsError,
    },
};

/// Depths of the completion queues of a rail: sends and receives.
const COMPLETIONS: [u32; 2] = [640, 320];
/// Polls of an empty queue, and those of a quick test.
const POLLS: u32 = 20_000;
const QUICK_POLLS: u32 = 5_000;

fn spec(found: &DeviceCapabilities, depth: u32) -> QueuePairSpec {
    QueuePairSpec { service: found.service, send_depth: depth, recv_depth: depth, inline_bytes: 0 }
}

/// Makes as many queue pairs as the driver counts on, one more, and all of them again.
pub(super) fn pairs(library: &Library, device: &str, quick: bool) -> Probed {
    let (domain, found) = open(library, device)?;
    let wanted = tried(found.max_queue_pairs, quick);
    let completions = domain.context().completion_queue(64, None)?;
    let mut details = Vec::new();
    for round in ["first", "second"] {
        step(format!("making {wanted} queue pairs, for the {round} time"));
        let mut made = Vec::new();
        for number in 1..=wanted {
            match domain.queue_pair(&spec(&found, 16), &completions) {
                Ok(pair) => made.push(pair),
                Err(error) => return Err(too_few(number, wanted, round, &error)),
            }
        }
        if wanted == found.max_queue_pairs {
            step("making one queue pair too many");
            match domain.queue_pair(&spec(&found, 16), &completions) {
                Ok(_) => details.push("the device has more".to_owned()),
                Err(error) if error.cause() == Some(Cause::QueuePairs) => {
                    details.push(format!("one more: {error}"));
                }
                Err(error) => return Err(broken(format!("one too many is refused otherwise: {error}"))),
            }
        }
    }
    finding(format!("{wanted} at a time, twice"), details)
}

fn too_few(number: u32, wanted: u32, round: &str, error: &VerbsError) -> Trouble {
    let text = format!("only {} of {wanted} for the {round} time: {error}", number - 1);
    let remedy = "end other programs that use the device; if there are none, restart the machine; if it \
                  stays so, please report it with this file: cables with fewer queue pairs are slower";
    Trouble::Fail(text, remedy.to_owned())
}

/// Asks for the depths of a rail.
pub(super) fn depths(library: &Library, device: &str, _: bool) -> Probed {
    let (domain, found) = open(library, device)?;
    let most = domain.context().attributes().map_or(4096, |limits| limits.max_cqe.max(1) as u32);
    let mut details = Vec::new();
    for depth in COMPLETIONS {
        step(format!("making a completion queue of {depth}"));
        let queue = domain.context().completion_queue(depth.min(most), None)?;
        if queue.depth() < depth {
            return Err(broken(format!("a completion queue of {depth} has {}", queue.depth())));
        }
        details.push(format!("completion queue of {depth}: {} granted", queue.depth()));
    }
    let completions = domain.context().completion_queue(64, None)?;
    let mut granted = Vec::new();
    for (sends, receives) in rail_depths(&found) {
        step(format!("making a queue pair of {sends} sends and {receives} receives"));
        let spec = QueuePairSpec { send_depth: sends, recv_depth: receives, ..spec(&found, 1) };
        let got = domain.queue_pair(&spec, &completions)?.granted();
        if got.max_send_wr < sends || got.max_recv_wr < receives {
            let text = format!(
                "{sends} sends and {receives} receives were requested, {} and {} granted",
                got.max_send_wr, got.max_recv_wr
            );
            return Err(broken(text));
        }
        granted.push(format!("{}/{}", got.max_send_wr, got.max_recv_wr));
    }
    finding(format!("sends/receives granted: {}", granted.join(", ")), details)
}

/// Returns the send and receive depths of a rail's queue pairs.
fn rail_depths(found: &DeviceCapabilities) -> Vec<(u32, u32)> {
    match found.frame_bytes {
        Some(frame) => {
            let frames = LONG_BYTES.div_ceil(frame as usize) as u32;
            vec![(256, SHORT_RECEIVES), (256, LONG_RECEIVES * frames), (264, 264)]
        }
        None => vec![(256, SHORT_RECEIVES)],
    }
}

/// Polls an empty queue.
pub(super) fn empty_polls(library: &Library, device: &str, quick: bool) -> Probed {
    let polls = if quick { QUICK_POLLS } else { POLLS };
    let (domain, found) = open(library, device)?;
    let completions = domain.context().completion_queue(64, None)?;
    let _pair = domain.queue_pair(&spec(&found, 16), &completions)?;
    step("polling an empty completion queue");
    let mut out = [Completion::default(); POLL_BATCH];
    let (began, mut longest) = (Instant::now(), Duration::ZERO);
    for _ in 0..polls {
        let start = Instant::now();
        if let Some(stray) = completions.poll(&mut out)?.first() {
            return Err(broken(format!("a completion of work that was never posted: {stray:?}")));
        }
        longest = longest.max(start.elapsed());
    }
    let each = began.elapsed().as_secs_f64() * 1e9 / f64::from(polls);
    if each > 20_000.0 {
        return Err(broken(format!("a poll takes {each:.0} ns: polling enters the kernel, or waits")));
    }
    finding(format!("{each:.0} ns each, {} us the longest", longest.as_micros()), Vec::new())
}

/// Posts all receives of a rail to a queue pair in INIT.
pub(super) fn early_receives(library: &Library, device: &str, _: bool) -> Probed {
    let (domain, found) = open(library, device)?;
    let completions = domain.context().completion_queue(640, None)?;
    let classes = match found.frame_bytes {
        Some(_) => vec![(SHORT_RECEIVES, SHORT_BYTES), (LONG_RECEIVES, LONG_BYTES)],
        None => vec![(SHORT_RECEIVES, LONG_BYTES)],
    };
    let mut posted = Vec::new();
    for (count, bytes) in classes {
        posted.push(post_early(&domain, &found, &completions, (count, bytes))?);
    }
    finding(posted.join(", "), Vec::new())
}

fn post_early(
    domain: &Domain,
    found: &DeviceCapabilities,
    completions: &transport::verbs::CompletionQueue,
    (count, bytes): (u32, usize),
) -> Result<String, Trouble> {
    let frames = found.frame_bytes.map_or(1, |frame| bytes.div_ceil(frame as usize) as u32);
    let memory = mapping(bytes)?;
    // SAFETY: the mapping is dropped after the region; nothing reads it.
    let region = unsafe { domain.register(memory.as_ptr(), memory.len(), Access::Local) }?;
    let depth = count * frames;
    let spec = QueuePairSpec { recv_depth: depth, ..spec(found, 64) };
    let pair = domain.queue_pair(&spec, completions)?;
    pair.initialize(Access::Local)?;
    for number in 0..count {
        step(format!("posting receive {number} of {bytes} bytes"));
        let run = LocalRun { start: memory.as_ptr(), len: bytes as u32, lkey: region.lkey() };
        // SAFETY: the memory stays mapped and registered until the queue pair is dropped, which is before
        // the region; nothing relies on its content.
        if let Err(error) = unsafe { pair.post_receive(number.into(), run) } {
            return Err(broken(format!("only {number} of {count} receives of {bytes} bytes: {error}")));
        }
    }
    drop(pair);
    drop(region);
    Ok(format!("{count} of {bytes} bytes"))
}

/// Maps private pages.
pub(super) fn mapping(bytes: usize) -> Result<Arc<Mapping>, Trouble> {
    let mapped = Mapping::private_for_device(bytes, 1 << 32);
    mapped
        .map(Arc::new)
        .map_err(|error| Trouble::Unknown(error.to_string(), "close other programs and try again".to_owned()))
}
