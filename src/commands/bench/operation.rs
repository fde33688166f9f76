//! Operations that can be measured.

use collectives::{Collective, UnknownName};
use std::str::FromStr;

/// An operation that can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::commands) enum Operation {
    /// A collective, on all ranks.
    Collective(Collective),
    /// A message from rank 0 to rank 1 and one back; the time is half of that.
    PingPong,
}

/// Whether input and output are the same memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::commands) enum Form {
    OutOfPlace,
    InPlace,
}

/// An operation, as it was spelt.
#[derive(Clone, Debug)]
pub(super) struct Named {
    pub(super) operation: Operation,
    pub(super) spelling: String,
}

impl Operation {
    const PING_PONG: &str = "pingpong";

    /// All names, in the order of the help text.
    pub(super) fn names() -> impl Iterator<Item = &'static str> {
        Collective::ALL.into_iter().map(Collective::name).chain([Operation::PING_PONG])
    }

    /// The collective that it is.
    pub(super) fn collective(self) -> Option<Collective> {
        match self {
            Operation::Collective(collective) => Some(collective),
            Operation::PingPong => None,
        }
    }

    /// Returns the forms of the operation; the first one is the default.
    pub(in crate::commands) fn forms(self) -> &'static [Form] {
        match self {
            Operation::Collective(
                Collective::AllReduce
                | Collective::AllGather
                | Collective::ReduceScatter
                | Collective::Reduce
                | Collective::Scan
                | Collective::ExclusiveScan,
            ) => &[Form::OutOfPlace, Form::InPlace],
            // As MPI has it.
            Operation::Collective(Collective::Broadcast) => &[Form::InPlace, Form::OutOfPlace],
            _ => &[Form::OutOfPlace],
        }
    }

    /// Whether it combines elements.
    pub(in crate::commands) fn reduces(self) -> bool {
        self.collective().is_some_and(Collective::reduces)
    }

    /// Whether it has a root.
    pub(in crate::commands) fn has_root(self) -> bool {
        self.collective().is_some_and(Collective::has_root)
    }

    /// Whether it moves data.
    pub(in crate::commands) fn has_data(self) -> bool {
        self != Operation::Collective(Collective::Barrier)
    }

    /// Blocks of the larger one of input and output.
    pub(in crate::commands) fn blocks(self, ranks: u32) -> u32 {
        self.collective().map_or(1, |c| c.input_blocks(ranks).max(c.output_blocks(ranks)))
    }

    /// Blocks of input and of output.
    pub(in crate::commands) fn input_and_output_blocks(self, ranks: u32) -> (u32, u32) {
        self.collective().map_or((1, 1), |c| (c.input_blocks(ranks), c.output_blocks(ranks)))
    }

    /// From algorithm bandwidth to bus bandwidth.
    pub(super) fn busbw_factor(self, ranks: u32) -> f64 {
        self.collective().map_or(1.0, |c| c.busbw_factor(ranks))
    }

    /// Operations in one run of it: a ping-pong is two messages.
    pub(super) fn per_run(self) -> u32 {
        if self == Operation::PingPong { 2 } else { 1 }
    }
}

impl FromStr for Named {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Named, UnknownName> {
        let plain = text.to_lowercase().replace(['-', '_'], "");
        let operation = if plain == Operation::PING_PONG {
            Operation::PingPong
        } else {
            let unknown = |_| UnknownName::new("operation", text, Operation::names());
            Operation::Collective(text.parse().map_err(unknown)?)
        };
        Ok(Named { operation, spelling: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spelling_is_kept() {
        let named: Named = "allreduce".parse().expect("a collective");
        assert_eq!(named.operation, Operation::Collective(Collective::AllReduce));
        assert_eq!(named.spelling, "allreduce");
        let named: Named = "ping-pong".parse().expect("not a collective");
        assert_eq!(named.operation, Operation::PingPong);
    }

    #[test]
    fn an_unknown_operation_suggests_the_nearest() {
        let error = "pingpnog".parse::<Named>().expect_err("no operation");
        assert_eq!(error.nearest, Some("pingpong"));
        let error = "alreduce".parse::<Named>().expect_err("no operation");
        assert_eq!(error.nearest, Some("all_reduce"));
    }
}
