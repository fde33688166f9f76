//! Structures of the verbs ABI whose layout is the same on every platform.

/// `struct ibv_sge`: a run of registered memory that a work request reads or writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Sge {
    /// Its address in this process.
    pub addr: u64,
    /// Its bytes.
    pub length: u32,
    /// The key of the registration that covers it.
    pub lkey: u32,
}

/// `union ibv_gid`: the address of a port, in network byte order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C, align(8))]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// Is there no address? Ports list such entries until their network is configured.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        u128::from_be_bytes(self.0) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::{align_of, offset_of, size_of};

    #[test]
    fn layouts_are_those_of_the_abi() {
        assert_eq!((size_of::<Sge>(), align_of::<Sge>()), (16, 8));
        assert_eq!((offset_of!(Sge, addr), offset_of!(Sge, length), offset_of!(Sge, lkey)), (0, 8, 12));
        assert_eq!((size_of::<Gid>(), align_of::<Gid>()), (16, 8));
        assert!(Gid::default().is_empty() && !Gid([1; 16]).is_empty());
    }
}
