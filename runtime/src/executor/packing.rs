//! Local steps that pack and unpack.
//!
//! # Safety
//! Packers take addresses; here they come from spans, whose bytes are accessible. Chunks of elements begin at
//! multiples of a cache line from the start of memory that is aligned to its elements. Spans of one step are
//! equal or disjoint, as the plan's verifier ensures, and a packed chunk is in memory of its own.

use super::{
    binding::Binding,
    program::{Op, OpKind},
};
use crate::kernels::quantize::Packer;
use collectives::ReduceOp;
use transport::memory::{Span, SpanMut};

/// Returns the number of elements in this many bytes; all of them are `f32`.
fn elements(bytes: usize) -> usize {
    bytes / size_of::<f32>()
}

fn check(packer: &Packer, elements_bytes: usize, packed: usize) -> usize {
    let count = elements(elements_bytes);
    let wanted = packer.codec().packed_bytes(count as u64) as usize;
    assert!(packed == wanted, "{packed} bytes for {count} elements packed into {wanted}");
    count
}

/// Computes `dst = packed(src)`.
fn encode(packer: &Packer, dst: SpanMut<'_>, src: Span<'_>) {
    let count = check(packer, src.len(), dst.len());
    // SAFETY: the spans are as long as `count` elements, and their packed bytes, are; they are disjoint.
    unsafe { packer.encode(dst.as_mut_ptr(), src.as_ptr().cast(), count) }
}

/// Computes `dst = unpacked(src)`.
fn decode(packer: &Packer, dst: SpanMut<'_>, src: Span<'_>) {
    let count = check(packer, dst.len(), src.len());
    // SAFETY: as for `encode`.
    unsafe { packer.decode(dst.as_mut_ptr().cast(), src.as_ptr(), count) }
}

/// Computes `dst = local + unpacked(src)`, divided by `ranks` where an average is complete.
fn decode_add(packer: &Packer, dst: SpanMut<'_>, local: Span<'_>, src: Span<'_>, ranks: Option<u32>) {
    assert!(dst.len() == local.len(), "operands of different lengths");
    let count = check(packer, dst.len(), src.len());
    // SAFETY: as for `encode`; `local` equals the destination or is disjoint from it.
    unsafe { packer.decode_add(dst.as_mut_ptr().cast(), local.as_ptr().cast(), src.as_ptr(), count, ranks) }
}

/// Runs a step that packs or unpacks.
pub(super) fn repack(binding: &Binding<'_>, op: &Op) {
    let constants = binding.constants;
    let Some(packed) = &constants.packed else { unreachable!("a plan that packs is bound to memory for it") };
    let (dst, a) = (binding.target(&op.dst), binding.source(&op.a));
    match op.kind {
        OpKind::Encode => encode(&packed.packer, dst, a),
        OpKind::Decode => decode(&packed.packer, dst, a),
        _ => {
            let last = constants.reducer.is_some_and(|reducer| reducer.op() == ReduceOp::Avg) && op.last;
            let b = binding.source(&op.b);
            decode_add(&packed.packer, dst, a, b, last.then_some(constants.ranks));
        }
    }
}
