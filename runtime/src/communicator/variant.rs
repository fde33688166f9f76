//! Calls whose constants are their own, not those of their plan: with blocks of unequal lengths, with packed
//! messages, or in a group.

use super::{call::Blocks, plans::PlannedCall};
use crate::{
    call::CallRecord,
    error::{Error, Result},
    executor::{Binding, CallConstants, Packed, Program, Protocols, Sizing},
    kernels::quantize::Packer,
};
use collectives::{PackedLayout, schedule::Buffer, uneven::UnevenLayout};
use std::sync::Arc;
use transport::memory::{Span, SpanMut};

/// Values of a single call, whose blocks differ in length or whose messages are packed.
pub(super) struct Variant {
    pub(super) constants: CallConstants,
    /// Without a number.
    pub(super) record: CallRecord,
    pub(super) scratch_bytes: usize,
}

impl Variant {
    /// Returns that of blocks of one length and messages that are not packed.
    pub(super) fn of(planned: &PlannedCall) -> Variant {
        let PlannedCall { constants, record, scratch_bytes, .. } = planned;
        Variant { constants: constants.clone(), record: *record, scratch_bytes: *scratch_bytes }
    }

    /// Adjusts the constants of a call to blocks of unequal lengths, or to packed messages.
    #[cold]
    pub(super) fn bind(
        &mut self,
        blocks: Blocks<'_>,
        program: &Program,
        protocols: &Protocols,
    ) -> Result<()> {
        let Variant { constants, record, scratch_bytes } = self;
        if record.codec.is_some() {
            return give_packed_chunks(program, constants, scratch_bytes);
        }
        let Blocks::Uneven { input, output, all } = blocks else { return Ok(()) };
        let elem_bytes = constants.elem_bytes;
        let layout = UnevenLayout::new(program.chunks, program.scratch_blocks, input, output, elem_bytes)
            .map_err(|error| Error::InvalidArgument(error.to_string()))?;
        *scratch_bytes = layout.len(Buffer::Scratch) as usize * elem_bytes;
        constants.results = protocols.writes_of(layout.len(Buffer::Output) as usize * elem_bytes);
        let bytes = all.map(|all| all.iter().map(|count| count.saturating_mul(elem_bytes as u64)).sum());
        constants.sizing =
            bytes.map_or(Sizing::ByMessage, |bytes| Sizing::ByCall(protocols.size_class(bytes)));
        // The lengths are part of the digest: ranks whose lengths differ are in different calls.
        let bytes_of = |count: &u64| count.to_le_bytes();
        let lengths: Vec<u8> = all.unwrap_or(&[]).iter().flat_map(bytes_of).collect();
        record.plan ^= xxhash_rust::xxh3::xxh3_64(&lengths);
        constants.uneven = Some(Arc::new(layout));
        Ok(())
    }
}

/// A call with its plan and its memory, not yet entered.
pub(super) struct Prepared<'m> {
    pub(super) program: Arc<Program>,
    pub(super) variant: Variant,
    pub(super) input: Span<'m>,
    pub(super) output: SpanMut<'m>,
    /// Whether sends are complete only when they are matched.
    pub(super) confirmed: bool,
}

impl<'m> Prepared<'m> {
    /// Returns the binding of the call.
    pub(super) fn binding<'b>(&'b self, digest: u64, scratch: SpanMut<'b>) -> Binding<'b>
    where
        'm: 'b,
    {
        let Prepared { variant, input, output, confirmed, .. } = self;
        Binding {
            constants: &variant.constants,
            straight: None,
            digest,
            input: *input,
            output: *output,
            scratch,
            confirmed: *confirmed,
        }
    }
}

/// Gives a call memory for its packed chunks, behind its scratch memory.
#[cold]
fn give_packed_chunks(
    program: &Program,
    constants: &mut CallConstants,
    scratch_bytes: &mut usize,
) -> Result<()> {
    let Some(packing) = program.packing else { return Ok(()) };
    let layout = PackedLayout::new(packing, &constants.layout);
    let start = scratch_bytes.next_multiple_of(super::ALIGNMENT);
    let Some(bytes) = layout.bytes().and_then(|bytes| start.checked_add(bytes as usize)) else {
        let what = format!("{} elements are more than can be packed", constants.layout.count());
        return Err(Error::InvalidArgument(what));
    };
    constants.packed = Some(Packed { packer: Packer::new(packing.codec), layout, start });
    *scratch_bytes = bytes;
    Ok(())
}
