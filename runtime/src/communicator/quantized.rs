//! `all_reduce` whose messages travel packed, for links that are slower than memory.
//!
//! Every rank still gets the same bits. They are not those of the exact sum: how far off they may be, and why, says
//! [`Codec`]'s module; how many encodings there are, [`Communicator::encodings_of`].

use super::{
    Communicator,
    call::Call,
    elements::{Elements, ElementsMut},
    plans::CallShape,
    request::{Request, Us},
    typed::{between, call, lengths, within},
};
use crate::error::{Error, Result};
use collectives::{
    Codec, Collective, DType, Numerics, ReduceOp, Spec, plan,
    schedule::InPlace,
    verify::{Credits, verify},
};
use topology::Rank;

impl Us {
    pub(super) fn all_reduce_quantized<'m>(
        self,
        send: Elements<'m>,
        recv: ElementsMut<'m>,
        op: ReduceOp,
        codec: Codec,
    ) -> Result<Request<'m>> {
        lengths("recv", recv.count, send.count)?;
        Ok(between(quantized(send.dtype, send.count, InPlace::No, op, codec)?, send, recv))
    }

    pub(super) fn all_reduce_quantized_in_place(
        self,
        data: ElementsMut<'_>,
        op: ReduceOp,
        codec: Codec,
    ) -> Result<Request<'_>> {
        Ok(within(quantized(data.dtype, data.count, InPlace::Yes, op, codec)?, data))
    }
}

impl Communicator {
    /// As [`Communicator::all_reduce`] for `sum` and `avg`, with every message packed by `codec`: a quarter of the bytes
    /// by `int8`, half by `bf16`. All ranks get the same bits, off by [`Codec::error_bound`] at most.
    ///
    /// # Errors
    /// See [`Error`]. Other operations are refused, and so is every call while results are to be reproducible.
    pub fn all_reduce_quantized(
        &mut self,
        send: &[f32],
        recv: &mut [f32],
        op: ReduceOp,
        codec: Codec,
    ) -> Result<()> {
        self.at_once(&self.us().all_reduce_quantized(send.into(), recv.into(), op, codec)?)
    }

    /// As [`Communicator::all_reduce_quantized`], with the input where the output will be.
    ///
    /// # Errors
    /// As there.
    pub fn all_reduce_quantized_in_place(
        &mut self,
        data: &mut [f32],
        op: ReduceOp,
        codec: Codec,
    ) -> Result<()> {
        self.at_once(&self.us().all_reduce_quantized_in_place(data.into(), op, codec)?)
    }

    /// The most times that an element of an `all_reduce` of `count` elements is packed on its way by `codec`: what its
    /// [`Codec::error_bound`] depends on. It plans for all ranks, which takes a while where there are many.
    ///
    /// # Errors
    /// [`Error::Plan`] when there is no such plan.
    pub fn encodings_of(&self, count: u64, codec: Codec) -> Result<u32> {
        let shape = CallShape {
            collective: Collective::AllReduce,
            count,
            elem_bytes: DType::F32.size() as u32,
            root: Rank(0),
            in_place: InPlace::No,
            uneven: false,
            numerics: Numerics::Fast,
            codec: Some(codec),
        };
        let (algorithm, _) = self.plans.choose(&shape)?;
        let spec = Spec::new(Collective::AllReduce, self.size())?.with_codec(Some(codec));
        let report = verify(&plan::plan(&spec, algorithm)?, Credits(0));
        report.map(|report| report.encodings).map_err(|fault| Error::InvalidArgument(fault.to_string()))
    }
}

fn quantized(dtype: DType, count: usize, in_place: InPlace, op: ReduceOp, codec: Codec) -> Result<Call> {
    if dtype != DType::F32 {
        let what = format!("{dtype} cannot be packed by {codec}; give f32, or call all_reduce");
        return Err(Error::InvalidArgument(what));
    }
    if !matches!(op, ReduceOp::Sum | ReduceOp::Avg) {
        let what = format!("{op} of packed elements is not defined; choose sum or avg, or call all_reduce");
        return Err(Error::InvalidArgument(what));
    }
    let call = call(Collective::AllReduce, dtype, count, in_place).with_op(op);
    Ok(Call { codec: Some(codec), ..call })
}
