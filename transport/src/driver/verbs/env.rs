//! Resources of a rank that the methods of a peer work with: memory, devices, rules.

use super::{
    checksum::checksum,
    memory::{DeviceKeys, Memory},
    port::Port,
    registration_cache::RegistrationCache,
    rules::Rules,
    wire::{HEAD_BYTES, Header, SPLIT_BYTES, message_checksum, split_checksum},
};
use crate::memory::Span;

/// Resources that the methods of a peer work with.
pub(super) struct Env<'a> {
    pub(super) rules: &'a Rules,
    pub(super) memory: &'a Memory,
    pub(super) registration_cache: &'a RegistrationCache,
    pub(super) ports: &'a mut [Port],
    /// Tells the user what is waited for.
    pub(super) notify: &'a dyn Fn(&str),
}

impl Env<'_> {
    /// Place of memory that is registered with the devices, if it is.
    #[inline]
    pub(super) fn locate(&self, start: *const u8, len: usize) -> Option<usize> {
        self.memory.locate(start, len).or_else(|| self.registration_cache.locate(start, len))
    }

    /// Writes a message to a place in the slab, with its checksum; returns its bytes.
    #[inline]
    pub(super) fn write_message(&self, at: usize, header: &Header, payload: Span<'_>) -> usize {
        let bytes = size_of::<Header>() + payload.len();
        if self.rules.checksum && bytes >= SPLIT_BYTES {
            let first = HEAD_BYTES - size_of::<Header>();
            self.memory.put_message(at, header.words(), payload.sub(0, first));
            let rest = payload.sub(first, payload.len() - first);
            let rest = self.memory.put_summed(at + HEAD_BYTES, rest);
            let crc = split_checksum(self.memory.bytes(at, HEAD_BYTES), rest);
            self.memory.write(at, crc);
        } else {
            self.memory.put_message(at, header.words(), payload);
            self.write_checksum(at, bytes);
        }
        bytes
    }

    /// Writes the header of a message of that many bytes before its payload, with the checksum of both.
    #[inline]
    pub(super) fn write_header(&self, at: usize, header: &Header, bytes: usize) {
        self.memory.put_message(at, header.words(), Span::from(&[][..]));
        self.write_checksum(at, bytes);
    }

    /// Writes the checksum of a message of that many bytes into its header, if messages have one.
    #[inline]
    fn write_checksum(&self, at: usize, bytes: usize) {
        if self.rules.checksum {
            let crc = message_checksum(self.memory.bytes(at, bytes));
            self.memory.write(at, crc);
        }
    }

    /// Copies a piece to its staging place; returns its checksum, or 0 if pieces have none.
    pub(super) fn stage(&self, at: usize, piece: Span<'_>) -> u32 {
        if self.rules.checksum {
            return self.memory.put_summed(at, piece);
        }
        self.memory.put(at, piece);
        0
    }

    /// Returns the checksum of a piece that stays where it is, or 0 if pieces have none.
    pub(super) fn sum(&self, at: usize, len: usize) -> u32 {
        if self.rules.checksum { checksum(self.memory.bytes(at, len)) } else { 0 }
    }

    /// Keys to memory on a device.
    #[inline]
    pub(super) fn keys(&mut self, port: usize) -> &mut DeviceKeys {
        &mut self.ports[port].keys
    }
}
