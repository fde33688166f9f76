//! Schedules as text that people read and write.
//!
//! One step is one line:
//!
//! ```text
//! send input[0] to rank 1
//! recv output[2] from rank 3 lane 1 after 4
//! recv_reduce output[2] = input[2] + rank 1 last after 0 2
//! copy output[0] = input[0]
//! reduce output[0] = input[0] + scratch[0..2]
//! encode packed[0] = input[0]
//! decode output[2] = packed[1]
//! decode_reduce output[0] = input[0] + packed[0] last
//! ```
//!
//! A range of several chunks is written `output[2..5]`, without the last. Lane 0 is not written. `last` and
//! `after` are the fields of the same name. A send that follows a receive has `following 4`, and does not
//! repeat the step behind `after`:
//!
//! ```text
//! send output[2] to rank 1 after 0 following 4
//! ```

use super::{Action, After, Buffer, ChunkRange, InPlace, Schedule, Step};
use std::fmt;
use std::str::{FromStr, SplitWhitespace};
use thiserror::Error;
use topology::Rank;

/// The error for a line that is not a step.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("expected {expected}, found {}", found_or_end(found))]
pub struct ParseError {
    /// The expected grammar at the position of the error.
    pub expected: &'static str,
    /// The text found; empty at the end of the line.
    pub found: String,
}

fn found_or_end(found: &str) -> String {
    if found.is_empty() { "the end of the line".to_owned() } else { format!("`{found}`") }
}

fn error(expected: &'static str, found: &str) -> ParseError {
    ParseError { expected, found: found.to_owned() }
}

impl Buffer {
    /// The name: `input`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Buffer::Input => "input",
            Buffer::Output => "output",
            Buffer::Scratch => "scratch",
            Buffer::Packed => "packed",
        }
    }
}

impl fmt::Display for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for ChunkRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ChunkRange { buffer, first, len } = self;
        match len {
            1 => write!(f, "{buffer}[{first}]"),
            _ => write!(f, "{buffer}[{first}..{}]", u64::from(*first) + u64::from(*len)),
        }
    }
}

impl FromStr for ChunkRange {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<ChunkRange, ParseError> {
        let wrong = || error("chunks such as `output[2]` or `input[2..5]`", text);
        let (name, rest) = text.split_once('[').ok_or_else(wrong)?;
        let inside = rest.strip_suffix(']').ok_or_else(wrong)?;
        let mut buffers = [Buffer::Input, Buffer::Output, Buffer::Scratch, Buffer::Packed].into_iter();
        let buffer = buffers.find(|b| b.name() == name);
        let buffer = buffer.ok_or_else(wrong)?;
        let number = |text: &str| text.parse::<u32>().map_err(|_| wrong());
        let (first, len) = match inside.split_once("..") {
            None => (number(inside)?, 1),
            Some((first, end)) => {
                let first = number(first)?;
                (first, number(end)?.checked_sub(first).filter(|len| *len > 0).ok_or_else(wrong)?)
            }
        };
        Ok(ChunkRange { buffer, first, len })
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Send { peer, src } => write!(f, "send {src} to rank {peer}"),
            Action::Recv { peer, dst } => write!(f, "recv {dst} from rank {peer}"),
            Action::RecvReduce { peer, local, dst, .. } => {
                write!(f, "recv_reduce {dst} = {local} + rank {peer}")
            }
            Action::Copy { src, dst } => write!(f, "copy {dst} = {src}"),
            Action::Reduce { a, b, dst, .. } => write!(f, "reduce {dst} = {a} + {b}"),
            Action::Encode { src, dst } => write!(f, "encode {dst} = {src}"),
            Action::Decode { src, dst } => write!(f, "decode {dst} = {src}"),
            Action::DecodeReduce { local, src, dst, .. } => {
                write!(f, "decode_reduce {dst} = {local} + {src}")
            }
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.action.fmt(f)?;
        if self.lane != 0 {
            write!(f, " lane {}", self.lane)?;
        }
        if self.action.last() == Some(true) {
            f.write_str(" last")?;
        }
        let mut whole = self.after.iter().filter(|step| Some(**step) != self.follows).peekable();
        if whole.peek().is_some() {
            f.write_str(" after")?;
        }
        whole.try_for_each(|step| write!(f, " {step}"))?;
        self.follows.map_or(Ok(()), |step| write!(f, " following {step}"))
    }
}

impl FromStr for Step {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Step, ParseError> {
        let mut words = Words(text.split_whitespace());
        let action = words.action()?;
        let mut step = Step { action, lane: 0, after: After::new(), follows: None };
        let mut word = words.next();
        if word == "lane" {
            step.lane = words.number("the number of a lane, up to 255")?;
            word = words.next();
        }
        if word == "last" && action.last().is_some() {
            step.action = action.with_last(true);
            word = words.next();
        }
        if word == "after" {
            step.after.push(words.number(A_STEP)?);
            word = words.next();
            while let Ok(number) = word.parse() {
                step.after.push(number);
                word = words.next();
            }
            if !matches!(word, "" | "following") {
                return Err(error(A_STEP, word));
            }
        }
        if word == "following" && matches!(action, Action::Send { .. }) {
            step.follow(words.number(A_STEP)?)?;
            word = words.next();
        }
        match (word, action) {
            ("", _) => Ok(step),
            _ if step.follows.is_some() => Err(error("the end of the line", word)),
            (_, Action::Send { .. }) => Err(error("`lane`, `after`, `following`, in this order", word)),
            _ if action.last().is_some() => Err(error("`lane`, `last`, `after`, in this order", word)),
            _ => Err(error("`lane`, `after`, in this order", word)),
        }
    }
}

impl Step {
    /// Makes the step follow another one, which must be among those it comes after.
    fn follow(&mut self, step: u32) -> Result<(), ParseError> {
        self.follows = Some(step);
        if self.after.contains(&step) {
            return Err(error("a step that is not named behind `after`", &step.to_string()));
        }
        let place = self.after.iter().position(|before| *before > step).unwrap_or(self.after.len());
        self.after.insert(place, step);
        Ok(())
    }
}

/// The argument of `after` and `following`.
const A_STEP: &str = "the number of a step";

/// The names of actions.
const ACTIONS: &str =
    "`send`, `recv`, `recv_reduce`, `copy`, `reduce`, `encode`, `decode` or `decode_reduce`";

/// The unread words of a line.
struct Words<'a>(SplitWhitespace<'a>);

impl<'a> Words<'a> {
    /// Returns the next word; empty at the end of the line.
    fn next(&mut self) -> &'a str {
        self.0.next().unwrap_or_default()
    }

    fn action(&mut self) -> Result<Action, ParseError> {
        match self.next() {
            "send" => {
                let src = self.range()?;
                self.word("to", "`to`")?;
                Ok(Action::Send { peer: self.rank()?, src })
            }
            "recv" => {
                let dst = self.range()?;
                self.word("from", "`from`")?;
                Ok(Action::Recv { peer: self.rank()?, dst })
            }
            "recv_reduce" => {
                let (dst, local) = self.assignment()?;
                self.word("+", "`+`")?;
                Ok(Action::RecvReduce { peer: self.rank()?, local, dst, last: false })
            }
            "copy" => {
                let (dst, src) = self.assignment()?;
                Ok(Action::Copy { src, dst })
            }
            "reduce" => {
                let (dst, a) = self.assignment()?;
                self.word("+", "`+`")?;
                Ok(Action::Reduce { a, b: self.range()?, dst, last: false })
            }
            "encode" => {
                let (dst, src) = self.assignment()?;
                Ok(Action::Encode { src, dst })
            }
            "decode" => {
                let (dst, src) = self.assignment()?;
                Ok(Action::Decode { src, dst })
            }
            "decode_reduce" => {
                let (dst, local) = self.assignment()?;
                self.word("+", "`+`")?;
                Ok(Action::DecodeReduce { local, src: self.range()?, dst, last: false })
            }
            other => Err(error(ACTIONS, other)),
        }
    }

    fn assignment(&mut self) -> Result<(ChunkRange, ChunkRange), ParseError> {
        let dst = self.range()?;
        self.word("=", "`=`")?;
        Ok((dst, self.range()?))
    }

    fn rank(&mut self) -> Result<Rank, ParseError> {
        self.word("rank", "`rank`")?;
        self.number("the number of a rank").map(Rank)
    }

    fn range(&mut self) -> Result<ChunkRange, ParseError> {
        self.next().parse()
    }

    fn number<N: FromStr>(&mut self, expected: &'static str) -> Result<N, ParseError> {
        let word = self.next();
        word.parse().map_err(|_| error(expected, word))
    }

    fn word(&mut self, word: &str, expected: &'static str) -> Result<(), ParseError> {
        let found = self.next();
        if found == word { Ok(()) } else { Err(error(expected, found)) }
    }
}

impl fmt::Display for Schedule {
    /// Writes a header, then the numbered steps of every rank.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let many = |n: u32, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
        write!(f, "{} {}: {}", self.collective, self.algorithm, many(self.ranks(), "rank"))?;
        if self.collective.has_root() {
            write!(f, ", root {}", self.root)?;
        }
        f.write_str(if self.in_place == InPlace::Yes { ", in place" } else { ", out of place" })?;
        write!(f, ", {}", many(self.chunks, "chunk"))?;
        if self.scratch_blocks > 0 {
            write!(f, ", {} of scratch", many(self.scratch_blocks, "block"))?;
        }
        if self.lanes > 1 {
            write!(f, ", {} lanes", self.lanes)?;
        }
        if let Some(packing) = self.packing {
            write!(f, ", {} packed as {}", many(packing.blocks, "block"), packing.codec)?;
        }
        writeln!(f)?;
        for (rank, program) in self.programs.iter().enumerate() {
            writeln!(f, "rank {rank}")?;
            for (number, step) in program.steps.iter().enumerate() {
                writeln!(f, "{number:>4}: {step}")?;
            }
        }
        Ok(())
    }
}
