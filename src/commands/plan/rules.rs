//! Device rules that a schedule is verified against: of a kind of device, or of all devices of a fabric.

use super::machine::read;
use crate::commands::Failed;
use collectives::{
    Schedule,
    select::survey::block_bytes,
    verify::{DeviceRules, Fault, verify_on_device},
};
use std::path::PathBuf;

/// Which rules, and for how long messages.
#[derive(Debug, clap::Args)]
pub(super) struct Devices {
    /// Check also that devices of this kind take every message: ib, usb4, apple-tb5 or thunderbolt
    #[arg(long, value_name = "KIND", value_parser = DeviceRules::named, conflicts_with = "fabric")]
    profile: Option<DeviceRules>,

    /// Check also that every device of a fabric file takes every message
    #[arg(long, value_name = "FILE")]
    fabric: Option<PathBuf>,

    /// Bytes of the larger side of the operation that messages are checked for; K, M, G and T are understood
    #[arg(short = 'b', long, value_name = "SIZE", default_value = "64M", value_parser = tbccl::parse_bytes, allow_negative_numbers = true)]
    bytes: u64,
}

impl Devices {
    /// Were any asked for?
    pub(super) fn are_given(&self) -> bool {
        self.profile.is_some() || self.fabric.is_some()
    }

    /// Returns the rules, if any; for a fabric, those of the device with the shortest messages.
    pub(super) fn rules(&self) -> Result<Option<DeviceRules>, Failed> {
        let Some(path) = &self.fabric else { return Ok(self.profile) };
        let wrong = |why: String| Failed::new(format_args!("`{}`: {why}", path.display()));
        DeviceRules::of_fabric(&read(path)?).map(Some).map_err(wrong)
    }

    /// Checks that a device with these rules takes every message of a correct schedule.
    ///
    /// # Errors
    /// The first message that it does not take, or the reason why no such call exists.
    pub(super) fn check(&self, schedule: &Schedule, rules: DeviceRules) -> Result<(), Fault> {
        let block = block_bytes(schedule.collective, schedule.ranks(), self.bytes);
        let layout = schedule.layout(block, 1).map_err(|error| Fault::Shape(error.to_string()))?;
        verify_on_device(schedule, &layout, 1, rules)
    }

    /// Returns the result of the check as text.
    pub(super) fn said(&self, rules: DeviceRules) -> String {
        format!("; at {} bytes no message is longer than {}", self.bytes, rules.limit())
    }
}
