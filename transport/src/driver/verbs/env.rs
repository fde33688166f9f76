//! Resources of a rank that the methods of a peer work with: memory, devices, rules.

use super::{
    memory::{DeviceKeys, Memory},
    port::Port,
    registration_cache::RegistrationCache,
    rules::Rules,
    wire::{Header, message_checksum},
};
use crate::memory::Span;

/// Resources that the methods of a peer work with.
pub(super) struct Env<'a> {
    pub(super) rules: Rules,
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
        self.memory.put(at + size_of::<Header>(), payload);
        self.write_header(at, header, size_of::<Header>() + payload.len())
    }

    /// Writes the header of a message of that many bytes before its payload, with the checksum of both.
    #[inline]
    pub(super) fn write_header(&self, at: usize, header: &Header, bytes: usize) -> usize {
        self.memory.put(at, Span::from(bytemuck::bytes_of(header)));
        if self.rules.checksum {
            let crc = message_checksum(self.memory.bytes(at, bytes));
            self.memory.put(at, Span::from(&crc.to_le_bytes()[..]));
        }
        bytes
    }

    /// DeviceKeys to memory on a device.
    #[inline]
    pub(super) fn keys(&mut self, port: usize) -> &mut DeviceKeys {
        &mut self.ports[port].keys
    }
}
