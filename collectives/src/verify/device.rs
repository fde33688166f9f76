//! The rules of a device: they depend on sizes, so they are checked against a layout.

use super::fault::{Fault, LocatedStep};
use crate::UnknownName;
use crate::layout::BlockLayout;
use crate::schedule::{Action, Schedule};

/// A device's rules for messages.
///
/// A device that counts frames requires equally many on both sides of a message. That needs no check here: a
/// send and its receive have the same length for every element count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceRules {
    /// The longest message.
    pub max_message_bytes: u64,
    /// Bytes of a frame, which a queue counts; 0 for a device without frames, whose queue counts messages.
    pub frame_bytes: u64,
    /// The frames (or messages) that a queue holds. The runtime never posts more than that; but one message
    /// must fit.
    pub queue_depth: u64,
}

impl DeviceRules {
    /// InfiniBand and what is like it: messages of up to 1 GiB, 16384 of them in a queue.
    pub const IB: DeviceRules =
        DeviceRules { max_message_bytes: 1 << 30, frame_bytes: 0, queue_depth: 16_384 };

    /// Thunderbolt on Linux: as [`DeviceRules::IB`].
    pub const USB4: DeviceRules = DeviceRules::IB;

    /// Thunderbolt 5 on macOS: a queue counts frames of 4 KiB and holds up to 4095, so a message has at most
    /// 16773120 bytes (Apple's technical note TN3205).
    pub const APPLE_TB5: DeviceRules =
        DeviceRules { max_message_bytes: 4095 * 4096, frame_bytes: 4096, queue_depth: 4095 };

    /// Returns the rules of a kind of device, by its name in fabric files; `thunderbolt` is that of macOS,
    /// whose rules are stricter.
    ///
    /// # Errors
    /// [`UnknownName`], which suggests the nearest one.
    pub fn named(name: &str) -> Result<DeviceRules, UnknownName> {
        match name {
            "ib" => Ok(DeviceRules::IB),
            "usb4" => Ok(DeviceRules::USB4),
            "apple-tb5" | "thunderbolt" => Ok(DeviceRules::APPLE_TB5),
            _ => Err(UnknownName::new("device", name, ["ib", "usb4", "apple-tb5", "thunderbolt"])),
        }
    }

    /// The longest message that the device takes.
    #[must_use]
    pub fn limit(&self) -> u64 {
        let queue =
            if self.frame_bytes == 0 { u64::MAX } else { self.frame_bytes.saturating_mul(self.queue_depth) };
        self.max_message_bytes.min(queue)
    }
}

/// Checks the messages of a schedule against the rules of a device, for blocks of the given layout.
///
/// # Errors
/// [`Fault::MessageTooLong`], which says how many segments would do; [`Fault::Shape`] when the layout has
/// another number of chunks, or the device takes no messages at all.
pub fn verify_on_device(
    schedule: &Schedule,
    layout: &BlockLayout,
    elem_size: usize,
    rules: DeviceRules,
) -> Result<(), Fault> {
    let max = rules.limit();
    if layout.chunks() != schedule.chunks {
        let (theirs, ours) = (layout.chunks(), schedule.chunks);
        return Err(Fault::Shape(format!("the layout has {theirs} chunks, the schedule {ours}")));
    }
    if max == 0 || (rules.frame_bytes == 0 && rules.queue_depth == 0) {
        return Err(Fault::Shape("a device whose queue or messages have no room".to_owned()));
    }
    for (rank, program) in (0..).zip(&schedule.programs) {
        for (number, step) in (0..).zip(&program.steps) {
            let Action::Send { src, .. } = step.action else { continue };
            let bytes = match schedule.packing.filter(|_| src.is_packed()) {
                Some(packing) => packing.codec.packed_bytes(layout.len(src.first % schedule.chunks)),
                None => layout.range(src).1 * elem_size as u64,
            };
            if bytes > max {
                let segments = segments_for(layout, elem_size as u64, max);
                return Err(Fault::MessageTooLong {
                    at: LocatedStep::new(schedule, rank, number),
                    bytes,
                    max,
                    segments,
                });
            }
        }
    }
    Ok(())
}

/// Into how many pieces each chunk must be cut so that none is longer than `max`. Pieces are made of whole
/// cache lines, so the longest may be one line longer than the average.
fn segments_for(layout: &BlockLayout, elem_size: u64, max: u64) -> u64 {
    let bytes = layout.longest() * elem_size;
    bytes.div_ceil(max.saturating_sub(64).max(64))
}
