//! Copies of messages that are sent from a copy.
//!
//! # Safety
//! The bytes of a copy are on the heap, are not changed, and live as long as each clone of it.

use std::sync::Arc;
use transport::memory::Span;

/// A copy of a message, and the memory that it is in.
#[derive(Clone, Debug)]
pub(super) struct MessageCopy {
    pub(super) bytes: Span<'static>,
    _memory: Arc<[u8]>,
}

impl MessageCopy {
    pub(super) fn of(message: &[u8]) -> MessageCopy {
        let memory: Arc<[u8]> = message.into();
        // SAFETY: the memory lies on the heap, is never changed, and lives as long as each clone of this.
        let bytes = unsafe { Span::new(memory.as_ptr(), memory.len()) };
        MessageCopy { bytes, _memory: memory }
    }
}
