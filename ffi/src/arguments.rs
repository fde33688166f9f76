//! Arguments of a call as C passed them, and the call that they describe.
//!
//! Every function of `collectives` and `vector` fills in [`Arguments`]; one function checks them all. Lengths
//! and addresses are checked by `tbccl`.
//!
//! # Safety
//! Lists of lengths are read by way of `cast`, which says what that rests on.

use crate::{
    boundary::Outcome,
    cast::list,
    codes::Coded,
    comm_handle::CommRef,
    failure::Failure,
    numbers::{datatype, member},
    redop::operation,
    tbcclCodec_t, tbcclDataType_t, tbcclRedOp_t,
};
use std::{
    ffi::{c_int, c_void},
    ptr::{null, null_mut},
};
use tbccl::{Codec, Collective, DType, Operation, Rank, RawAllReduce, RawCall, ReduceOp};

/// The call of a function.
#[derive(Clone, Copy)]
enum Call {
    Collective(Collective),
    /// A message to a rank.
    Send(c_int),
    /// A message from a rank.
    Recv(c_int),
}

/// Elements of each block.
#[derive(Clone, Copy)]
enum Counts {
    Even,
    Common(*const usize),
    Own { send: *const usize, recv: *const usize },
}

/// The arguments of a call, as C passed them.
#[derive(Clone, Copy)]
pub(crate) struct Arguments {
    call: Call,
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    datatype: tbcclDataType_t,
    op: Option<tbcclRedOp_t>,
    root: Option<c_int>,
    codec: Option<tbcclCodec_t>,
    counts: Counts,
}

impl Arguments {
    #[inline(always)] // As `as_all_reduce`.
    pub(crate) fn new(
        collective: Collective,
        send: *const c_void,
        recv: *mut c_void,
        count: usize,
        datatype: tbcclDataType_t,
    ) -> Arguments {
        let call = Call::Collective(collective);
        Arguments {
            call,
            send,
            recv,
            count,
            datatype,
            op: None,
            root: None,
            codec: None,
            counts: Counts::Even,
        }
    }

    pub(crate) fn send(data: *const c_void, count: usize, datatype: tbcclDataType_t, to: c_int) -> Arguments {
        Arguments {
            call: Call::Send(to),
            ..Arguments::new(Collective::SendRecv, data, null_mut(), count, datatype)
        }
    }

    pub(crate) fn recv(data: *mut c_void, count: usize, datatype: tbcclDataType_t, from: c_int) -> Arguments {
        Arguments {
            call: Call::Recv(from),
            ..Arguments::new(Collective::SendRecv, null(), data, count, datatype)
        }
    }

    #[inline(always)] // As `as_all_reduce`.
    pub(crate) fn op(self, op: tbcclRedOp_t) -> Arguments {
        Arguments { op: Some(op), ..self }
    }

    pub(crate) fn root(self, root: c_int) -> Arguments {
        Arguments { root: Some(root), ..self }
    }

    pub(crate) fn codec(self, codec: tbcclCodec_t) -> Arguments {
        Arguments { codec: Some(codec), ..self }
    }

    pub(crate) fn counts(self, counts: *const usize) -> Arguments {
        Arguments { counts: Counts::Common(counts), ..self }
    }

    pub(crate) fn own_counts(self, send: *const usize, recv: *const usize) -> Arguments {
        Arguments { counts: Counts::Own { send, recv }, ..self }
    }

    /// Returns the call as an `all_reduce` without scale and codec, if it is one and its numbers are known.
    #[inline(always)] // As `tbccl::RawAllReduce`.
    pub(crate) fn as_all_reduce(&self) -> Option<RawAllReduce> {
        if !matches!(self.call, Call::Collective(Collective::AllReduce)) || self.codec.is_some() {
            return None;
        }
        let (dtype, op) = (DType::from_code(self.datatype)?, ReduceOp::from_code(self.op?)?);
        Some(RawAllReduce { dtype, op, count: self.count, send: self.send.cast(), recv: self.recv.cast() })
    }

    /// Checks the arguments, and describes the call for `tbccl`.
    pub(crate) fn describe(&self, found: CommRef<'_>) -> Outcome<RawCall> {
        let dtype = datatype(self.datatype)?;
        let (send, recv) = (self.send.cast(), self.recv.cast());
        let root = match (self.call, self.root) {
            (Call::Send(peer) | Call::Recv(peer), _) => member("peer", peer, found)?,
            (Call::Collective(_), Some(root)) => member("root", root, found)?,
            (Call::Collective(_), None) => Rank(0),
        };
        let codec = self.codec.map(known_codec).transpose()?;
        let op = self.op.map(|op| operation(op, dtype, found)).transpose()?;
        if let Some((_, Some(_))) = op {
            self.check_scalable()?;
        }
        let mut operation = match self.call {
            Call::Collective(collective) => Operation::new(collective).with_root(root),
            Call::Send(_) => Operation::send(root),
            Call::Recv(_) => Operation::recv(root),
        };
        if let Some(codec) = codec {
            operation = operation.with_codec(codec);
        }
        if let Some((op, scale)) = op {
            operation = operation.with_op(op);
            if let Some(scale) = scale {
                operation = operation.with_scale(scale);
            }
        }
        if !matches!(self.counts, Counts::Even) {
            operation = self.with_counts(operation, found)?;
        }
        Ok(RawCall { operation, dtype, count: self.count, send, recv })
    }

    /// Adds the lengths of blocks.
    #[cold]
    fn with_counts(&self, operation: Operation<'static>, found: CommRef<'_>) -> Outcome<Operation<'static>> {
        Ok(match self.counts {
            Counts::Even => operation,
            Counts::Common(counts) => operation.with_counts(lengths("counts", counts, found)?),
            Counts::Own { send, recv } => {
                let (send, recv) = (lengths("sendcounts", send, found)?, lengths("recvcounts", recv, found)?);
                operation.with_own_counts(send, recv)
            }
        })
    }

    /// Refuses an operation that multiplies, where the call takes none.
    #[cold]
    fn check_scalable(&self) -> Outcome {
        let Call::Collective(collective) = self.call else { return Ok(()) };
        let shape = collective.shape();
        if shape.averages && self.codec.is_none() && matches!(self.counts, Counts::Even) {
            return Ok(());
        }
        let variant = match (self.codec, self.counts) {
            (Some(_), _) => "Quantized",
            (None, Counts::Even) => "",
            (None, _) => "V",
        };
        let function = shape.names.c.unwrap_or_default();
        Err(Failure::argument(format!(
            "op was made by tbcclRedOpCreatePreMulSum, which tbccl{function}{variant} does not take; \
             tbcclAllReduce, tbcclReduce and tbcclReduceScatter do"
        )))
    }
}

#[cold]
fn known_codec(number: tbcclCodec_t) -> Outcome<Codec> {
    Codec::from_code(number).ok_or_else(|| Failure::argument(format!("codec is {number}, which is no codec")))
}

/// Reads the lengths of all ranks' blocks.
fn lengths(what: &str, counts: *const usize, found: CommRef<'_>) -> Outcome<Vec<usize>> {
    // SAFETY: as `tbccl.h` says, it is null or has a length for each rank.
    unsafe { list(what, counts, found.shared.size() as usize) }
}
