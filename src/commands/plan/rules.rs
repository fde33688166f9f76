//! Device rules that a schedule is verified against: those of a kind of device, or of all devices of a
//! fabric.

use super::machine::read;
use crate::commands::CommandError;
use collectives::{
    Schedule,
    select::survey::block_bytes,
    verify::{DeviceRules, Fault, verify_on_device},
};
use std::path::PathBuf;

/// Options that choose the rules and the size of the operation.
#[derive(Debug, clap::Args)]
pub(super) struct DeviceArgs {
    /// Also check that devices of this kind accept every message: ib, usb4, apple-tb5 or thunderbolt
    #[arg(long, value_name = "KIND", value_parser = DeviceRules::named, conflicts_with = "fabric")]
    profile: Option<DeviceRules>,

    /// Also check that every device of a fabric file accepts every message
    #[arg(long, value_name = "FILE")]
    fabric: Option<PathBuf>,

    /// Bytes of the larger of input and output, for the check of message sizes; K, M, G and T are understood
    #[arg(
        short = 'b',
        long,
        value_name = "SIZE",
        default_value = "64M",
        value_parser = tbccl::parse_bytes,
        allow_negative_numbers = true,
    )]
    bytes: u64,
}

impl DeviceArgs {
    /// Whether rules were requested.
    pub(super) fn are_given(&self) -> bool {
        self.profile.is_some() || self.fabric.is_some()
    }

    /// Returns the rules, if any; for a fabric those of the device with the shortest messages.
    pub(super) fn rules(&self) -> Result<Option<DeviceRules>, CommandError> {
        let Some(path) = &self.fabric else { return Ok(self.profile) };
        let invalid = |why: String| CommandError::new(format_args!("`{}`: {why}", path.display()));
        DeviceRules::of_fabric(&read(path)?).map(Some).map_err(invalid)
    }

    /// Checks that a device with these rules accepts every message of a correct schedule.
    ///
    /// # Errors
    /// The first message that it rejects, or the reason why no such call exists.
    pub(super) fn check(&self, schedule: &Schedule, rules: DeviceRules) -> Result<(), Fault> {
        let block = block_bytes(schedule.collective, schedule.ranks(), self.bytes);
        let layout = schedule.layout(block, 1).map_err(|error| Fault::Shape(error.to_string()))?;
        verify_on_device(schedule, &layout, 1, rules)
    }

    /// Returns the result of the check as text.
    pub(super) fn describe(&self, rules: DeviceRules) -> String {
        format!("; at {} bytes no message is longer than {}", self.bytes, rules.limit())
    }
}
