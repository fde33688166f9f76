//! Schedules as TOML files.
//!
//! ```toml
//! version = 1
//! collective = "all_reduce"
//! algorithm = "ring"
//! root = 0
//! in_place = "no"
//! chunks = 2
//! scratch_blocks = 0
//! lanes = 1
//!
//! [[rank]]
//! steps = [
//!     "send input[0] to rank 1",
//!     "recv_reduce output[1] = input[1] + rank 1 last",
//! ]
//! ```
//!
//! Where messages are packed, `codec = "int8"` and `packed_blocks = 2` follow `lanes`.
//!
//! There is one `[[rank]]` per rank, in order; the steps are written as in the rest of the program's output,
//! and count from 0. Keys that are not known are errors. Reading says only whether it is a schedule; the
//! verifier says whether it is a good one.

use super::{InPlace, RankProgram, Schedule, Step};
use crate::{Codec, Collective, Packing};
use serde::Deserialize;
use std::fmt::Write;
use thiserror::Error;
use toml::Spanned;
use topology::Rank;

/// The version of the form.
const VERSION: u32 = 1;

/// The error for a text that is not a schedule.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line {line}: {message}")]
pub struct TomlError {
    /// The line, counted from 1.
    pub line: usize,
    /// The error.
    pub message: String,
}

/// The structure of the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Form {
    version: Spanned<u32>,
    collective: Spanned<String>,
    algorithm: String,
    #[serde(default)]
    root: Rank,
    #[serde(default)]
    in_place: InPlace,
    chunks: Spanned<u32>,
    #[serde(default)]
    scratch_blocks: u32,
    #[serde(default = "one_lane")]
    lanes: u8,
    codec: Option<Spanned<String>>,
    #[serde(default)]
    packed_blocks: u32,
    rank: Vec<RankForm>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RankForm {
    steps: Vec<Spanned<String>>,
}

const fn one_lane() -> u8 {
    1
}

impl Schedule {
    /// Returns the schedule as a TOML file.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = self.write_toml(&mut text);
        text
    }

    fn write_toml(&self, text: &mut String) -> std::fmt::Result {
        let in_place = if self.in_place == InPlace::Yes { "yes" } else { "no" };
        let algorithm = toml::Value::from(self.algorithm.as_str());
        let collective =
            if self.collective == Collective::SendRecv { "send_recv" } else { self.collective.name() };
        writeln!(text, "version = {VERSION}")?;
        writeln!(text, "collective = \"{collective}\"\nalgorithm = {algorithm}")?;
        writeln!(text, "root = {}\nin_place = \"{in_place}\"\nchunks = {}", self.root, self.chunks)?;
        writeln!(text, "scratch_blocks = {}\nlanes = {}", self.scratch_blocks, self.lanes)?;
        if let Some(Packing { codec, blocks }) = self.packing {
            writeln!(text, "codec = \"{codec}\"\npacked_blocks = {blocks}")?;
        }
        for program in &self.programs {
            writeln!(text, "\n[[rank]]\nsteps = [")?;
            program.steps.iter().try_for_each(|step| writeln!(text, "    \"{step}\","))?;
            writeln!(text, "]")?;
        }
        Ok(())
    }

    /// Parses the output of [`to_toml`](Schedule::to_toml).
    ///
    /// # Errors
    /// [`TomlError`] with the line of the first thing that is not TOML, not known, or not a step.
    pub fn from_toml(text: &str) -> Result<Schedule, TomlError> {
        let at = |offset: usize, message: String| TomlError { line: line_of(text, offset), message };
        let form: Form = toml::from_str(text)
            .map_err(|error| at(error.span().map_or(0, |span| span.start), error.message().to_owned()))?;
        if *form.version.get_ref() != VERSION {
            let message =
                format!("version {} is not known; this program reads {VERSION}", form.version.get_ref());
            return Err(at(form.version.span().start, message));
        }
        if *form.chunks.get_ref() == 0 {
            return Err(at(form.chunks.span().start, "a block has at least 1 chunk".to_owned()));
        }
        let collective = form.collective.get_ref().parse::<Collective>();
        let collective = collective.map_err(|error| at(form.collective.span().start, error.to_string()))?;
        let codec = form.codec.map(|name| {
            let codec = name.get_ref().parse::<Codec>();
            codec.map_err(|error| at(name.span().start, error.to_string()))
        });
        let packing = codec.transpose()?.map(|codec| Packing { codec, blocks: form.packed_blocks });
        let program = |rank: RankForm| {
            let step = |line: Spanned<String>| {
                line.get_ref().parse::<Step>().map_err(|error| at(line.span().start, error.to_string()))
            };
            rank.steps.into_iter().map(step).collect::<Result<_, _>>().map(|steps| RankProgram { steps })
        };
        Ok(Schedule {
            collective,
            algorithm: form.algorithm,
            root: form.root,
            in_place: form.in_place,
            chunks: form.chunks.into_inner(),
            scratch_blocks: form.scratch_blocks,
            lanes: form.lanes,
            packing,
            programs: form.rank.into_iter().map(program).collect::<Result<_, _>>()?,
        })
    }
}

/// Returns the line of a byte, counted from 1.
fn line_of(text: &str, offset: usize) -> usize {
    text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1
}
