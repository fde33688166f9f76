//! Operations that can be measured.

use collectives::{Collective, Overlap, UnknownName};
use std::str::FromStr;

/// An operation that can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::commands) enum Operation {
    /// A collective on all ranks.
    Collective(Collective),
    /// The vector form of a collective, with blocks of unequal lengths.
    Vector(Collective),
    /// A message from rank 0 to rank 1 and back; the time is half of a round trip.
    PingPong,
}

/// Whether input and output are the same memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::commands) enum Form {
    OutOfPlace,
    InPlace,
}

/// An operation with its spelling on the command line.
#[derive(Clone, Debug)]
pub(super) struct OperationArg {
    pub(super) operation: Operation,
    pub(super) spelling: String,
}

impl Operation {
    const PING_PONG: &str = "pingpong";

    /// Returns all operations in the order of the help text.
    pub(super) fn all() -> impl Iterator<Item = Operation> {
        let vectors = Collective::ALL.into_iter().filter(|collective| collective.shape().vector.is_some());
        let collectives = Collective::ALL.into_iter().map(Operation::Collective);
        collectives.chain(vectors.map(Operation::Vector)).chain([Operation::PingPong])
    }

    /// Returns all names in the order of the help text.
    pub(super) fn names() -> impl Iterator<Item = &'static str> {
        Operation::all().map(Operation::name)
    }

    /// Returns the name.
    pub(super) fn name(self) -> &'static str {
        match self {
            Operation::Collective(collective) => collective.name(),
            Operation::Vector(Collective::AllGather) => "all_gather_v",
            Operation::Vector(Collective::ReduceScatter) => "reduce_scatter_v",
            Operation::Vector(Collective::Gather) => "gather_v",
            Operation::Vector(Collective::Scatter) => "scatter_v",
            Operation::Vector(Collective::AllToAll) => "all_to_all_v",
            // Other collectives have no vector form.
            Operation::Vector(collective) => collective.name(),
            Operation::PingPong => Operation::PING_PONG,
        }
    }

    /// Returns the collective, if it is one, in either form.
    pub(super) fn collective(self) -> Option<Collective> {
        match self {
            Operation::Collective(collective) | Operation::Vector(collective) => Some(collective),
            Operation::PingPong => None,
        }
    }

    /// Whether calls can be grouped: those that move data by one call.
    pub(super) fn can_be_grouped(self) -> bool {
        self != Operation::PingPong && self.has_data()
    }

    /// Returns the forms of the operation; the first one is the default.
    pub(in crate::commands) fn forms(self) -> &'static [Form] {
        // The vector forms have no form in place.
        let Operation::Collective(collective) = self else { return &[Form::OutOfPlace] };
        let shape = collective.shape();
        match shape.in_place {
            // In place comes first, since MPI's broadcast has a single buffer.
            Overlap::Same if shape.send.is_root_only => &[Form::InPlace, Form::OutOfPlace],
            Overlap::Same => &[Form::OutOfPlace, Form::InPlace],
            // The root's buffer would be larger than the buffers of other ranks.
            Overlap::SendInRecv | Overlap::RecvInSend if shape.has_root => &[Form::OutOfPlace],
            Overlap::SendInRecv | Overlap::RecvInSend => &[Form::OutOfPlace, Form::InPlace],
            Overlap::Never => &[Form::OutOfPlace],
        }
    }

    /// Whether the operation reduces elements.
    pub(in crate::commands) fn reduces(self) -> bool {
        self.collective().is_some_and(Collective::reduces)
    }

    /// Whether the operation has a root.
    pub(in crate::commands) fn has_root(self) -> bool {
        self.collective().is_some_and(Collective::has_root)
    }

    /// Whether the operation moves data.
    pub(in crate::commands) fn has_data(self) -> bool {
        self != Operation::Collective(Collective::Barrier)
    }

    /// Returns the blocks of the larger of input and output.
    pub(in crate::commands) fn blocks(self, ranks: u32) -> u32 {
        self.collective().map_or(1, |c| c.input_blocks(ranks).max(c.output_blocks(ranks)))
    }

    /// Returns the blocks of the input and of the output.
    pub(in crate::commands) fn input_and_output_blocks(self, ranks: u32) -> (u32, u32) {
        self.collective().map_or((1, 1), |c| (c.input_blocks(ranks), c.output_blocks(ranks)))
    }

    /// Returns the factor from algorithm bandwidth to bus bandwidth.
    pub(super) fn busbw_factor(self, ranks: u32) -> f64 {
        self.collective().map_or(1.0, |c| c.busbw_factor(ranks))
    }

    /// Returns the operations per run: a ping-pong consists of two messages.
    pub(super) fn per_run(self) -> u32 {
        if self == Operation::PingPong { 2 } else { 1 }
    }
}

impl FromStr for Operation {
    type Err = UnknownName;

    /// Parses a name; case, `-` and `_` do not count, nor do the spellings of NCCL and MPI.
    fn from_str(text: &str) -> Result<Operation, UnknownName> {
        let plain = |name: &str| name.to_lowercase().replace(['-', '_'], "");
        let given = plain(text);
        let is_named = |operation: &Operation| plain(operation.name()) == given;
        if let Some(operation) = Operation::all().find(is_named) {
            return Ok(operation);
        }
        let unknown = |_| UnknownName::new("operation", text, Operation::names().chain([OpArg::ALL]));
        text.parse().map(Operation::Collective).map_err(unknown)
    }
}

/// One operation, or all of them.
#[derive(Clone, Debug)]
pub(super) enum OpArg {
    One(OperationArg),
    All,
}

impl OpArg {
    const ALL: &str = "all";
}

impl FromStr for OpArg {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<OpArg, UnknownName> {
        if text == OpArg::ALL { Ok(OpArg::All) } else { text.parse().map(OpArg::One) }
    }
}

impl FromStr for OperationArg {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<OperationArg, UnknownName> {
        Ok(OperationArg { operation: text.parse()?, spelling: text.to_owned() })
    }
}

impl From<Operation> for OperationArg {
    fn from(operation: Operation) -> OperationArg {
        OperationArg { operation, spelling: operation.name().to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spelling_is_kept() {
        let named: OperationArg = "allreduce".parse().expect("a collective");
        assert_eq!(named.operation, Operation::Collective(Collective::AllReduce));
        assert_eq!(named.spelling, "allreduce");
        let named: OperationArg = "ping-pong".parse().expect("not a collective");
        assert_eq!(named.operation, Operation::PingPong);
        let named: OperationArg = "allgatherv".parse().expect("a vector form");
        assert_eq!(named.operation, Operation::Vector(Collective::AllGather));
    }

    #[test]
    fn every_collective_with_a_vector_form_has_a_name_for_it() {
        for collective in Collective::ALL.into_iter().filter(|c| c.shape().vector.is_some()) {
            let name = Operation::Vector(collective).name();
            assert_eq!(name, format!("{}_v", collective.shape().names.rust));
            assert_eq!(name.parse::<Operation>().ok(), Some(Operation::Vector(collective)));
        }
    }

    #[test]
    fn an_unknown_operation_suggests_the_nearest() {
        let error = "pingpnog".parse::<OperationArg>().expect_err("no operation");
        assert_eq!(error.nearest, Some("pingpong"));
        let error = "alreduce".parse::<OperationArg>().expect_err("no operation");
        assert_eq!(error.nearest, Some("all_reduce"));
    }
}
