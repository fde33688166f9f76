//! Opening, using and closing a device again and again: resources that a driver leaks run out.
//!
//! # Safety
//! The region covers a mapping that outlives it; nothing is posted.

use super::{finding, queues::mapping};
use crate::commands::selftest::{
    finding::{Probed, Trouble},
    message::step,
};
use std::time::Instant;
use transport::verbs::{Access, DeviceCapabilities, Library, QueuePairSpec};

/// Cycles. Some systems were seen to allow three per start of the machine.
const CYCLES: u32 = 20;

pub(super) fn reopening(library: &Library, device: &str, _: bool) -> Probed {
    let memory = mapping(1 << 20)?;
    let began = Instant::now();
    for cycle in 1..=CYCLES {
        step(format!("cycle {cycle} of opening and closing"));
        one(library, device, memory.as_ptr(), memory.len()).map_err(|trouble| match trouble {
            Trouble::Fail(text, _) if cycle > 1 => Trouble::Fail(
                format!("cycle {cycle} of {CYCLES}: {text}"),
                "the driver leaks what is closed: restart the machine, and please report it".to_owned(),
            ),
            other => other,
        })?;
    }
    let each = began.elapsed().as_secs_f64() * 1e3 / f64::from(CYCLES);
    finding(format!("{CYCLES} times, {each:.1} ms each"), Vec::new())
}

fn one(library: &Library, device: &str, start: *mut u8, len: usize) -> Result<(), Trouble> {
    let context = library.open(device)?;
    let domain = context.domain()?;
    let service = DeviceCapabilities::probe(&context, &domain)?.service;
    let completions = context.completion_queue(64, None)?;
    // SAFETY: the caller's mapping outlives this call, in which the region is dropped.
    let _region = unsafe { domain.register(start, len, Access::Local) }?;
    let spec = QueuePairSpec { service, send_depth: 16, recv_depth: 16, inline_bytes: 0 };
    domain.queue_pair(&spec, &completions)?.initialize(Access::Local)?;
    Ok(())
}
