//! Enumerations of the verbs ABI: integers with named constants.
//!
//! All but [`LinkLayer`] are C enums, 32 bits wide.

mod device;
mod memory;
mod queue;
mod work;

pub use device::*;
pub use memory::*;
pub use queue::*;
pub use work::*;

/// The prefix of an enumeration's constants in C, and their names and values.
pub type EnumConstants = (&'static str, &'static [(&'static str, u32)]);

/// All enumerations, for comparison with a C header.
pub const ENUMS: [&[EnumConstants]; 4] = [device::ENUMS, memory::ENUMS, queue::ENUMS, work::ENUMS];

/// Defines integer types with named constants. The constants of a `flags` type can be combined, those of a
/// `plain` type can't.
macro_rules! enums {
    ($($(#[$doc:meta])* $kind:ident $type:ident($inner:ty) = $prefix:literal {
        $($(#[$name_doc:meta])* $name:ident = $number:expr,)*
    })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
            #[repr(transparent)]
            pub struct $type(pub $inner);

            impl $type {
                $($(#[$name_doc])* pub const $name: $type = $type($number);)*

                /// All named values, in the order of the ABI.
                pub const ALL: &[$type] = &[$($type::$name),*];

                /// Returns the constant's name, or `None` for an unknown value.
                #[must_use]
                pub const fn name(self) -> Option<&'static str> {
                    $(if self.0 == $type::$name.0 { return Some(stringify!($name)); })*
                    None
                }
            }

            impl std::fmt::Debug for $type {
                fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    match self.name() {
                        Some(name) => f.write_str(name),
                        None => write!(f, concat!(stringify!($type), "({})"), self.0),
                    }
                }
            }

            enums! { @$kind $type }
        )*

        /// The enumerations of this module.
        pub(super) const ENUMS: &[super::EnumConstants] =
            &[$(($prefix, &[$((stringify!($name), $type::$name.0 as u32),)*])),*];
    };
    (@plain $type:ident) => {};
    (@flags $type:ident) => {
        impl $type {
            /// The empty set of flags.
            pub const NONE: $type = $type(0);

            /// Whether all of `flags` are set.
            #[must_use]
            pub const fn contains(self, flags: $type) -> bool {
                self.0 & flags.0 == flags.0
            }

            /// Whether any of `flags` is set.
            #[must_use]
            pub const fn intersects(self, flags: $type) -> bool {
                self.0 & flags.0 != 0
            }

            /// Returns the union of both sets; usable in constants.
            #[must_use]
            pub const fn with(self, flags: $type) -> $type {
                $type(self.0 | flags.0)
            }

            /// Returns these flags with `flags` cleared.
            #[must_use]
            pub const fn without(self, flags: $type) -> $type {
                $type(self.0 & !flags.0)
            }
        }

        impl std::ops::BitOr for $type {
            type Output = $type;

            fn bitor(self, other: $type) -> $type {
                self.with(other)
            }
        }

        impl std::ops::BitOrAssign for $type {
            fn bitor_assign(&mut self, other: $type) {
                *self = self.with(other);
            }
        }
    };
}
use enums;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_abi() {
        assert_eq!((QpType::RC.0, QpType::UC.0, QpType::UD.0), (2, 3, 4));
        assert_eq!((QpState::RTR.0, QpState::RTS.0, QpState::ERR.0), (2, 3, 6));
        assert_eq!((WrOpcode::RDMA_WRITE.0, WrOpcode::SEND.0, WrOpcode::FLUSH.0), (0, 2, 14));
        assert_eq!((WcOpcode::RECV.0, WcOpcode::RECV_RDMA_WITH_IMM.0), (128, 129));
        assert_eq!((WcStatus::WR_FLUSH_ERR.0, WcStatus::RETRY_EXC_ERR.0), (5, 12));
        assert_eq!((PortState::DOWN.0, PortState::ACTIVE.0), (1, 4));
        assert_eq!((AccessFlags::REMOTE_WRITE.0, AccessFlags::RELAXED_ORDERING.0), (2, 0x10_0000));
        assert_eq!((SendFlags::SIGNALED.0, SendFlags::INLINE.0), (2, 8));
    }

    #[test]
    fn statuses_are_dense_so_none_is_missing() {
        let numbers: Vec<u32> = WcStatus::ALL.iter().map(|status| status.0).collect();
        assert_eq!(numbers, (0..24).collect::<Vec<u32>>());
        assert_eq!(
            EventType::ALL.iter().map(|event| event.0).collect::<Vec<_>>(),
            (0..20).collect::<Vec<_>>()
        );
    }

    #[test]
    fn unknown_numbers_are_kept_and_shown() {
        let text = format!("{:?} {:?}", WcStatus::REM_ACCESS_ERR, WcStatus(99));
        assert_eq!(text, "REM_ACCESS_ERR WcStatus(99)");
        assert_eq!(WcStatus(99).name(), None);
    }

    #[test]
    fn flags_are_distinct_bits() {
        let all = AccessFlags::ALL.iter().fold(AccessFlags::NONE, |sum, flag| sum | *flag);
        assert_eq!(all.0.count_ones() as usize, AccessFlags::ALL.len());
        assert!(all.contains(AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ));
        assert!(!AccessFlags::NONE.contains(AccessFlags::LOCAL_WRITE));
        let fewer = all.without(AccessFlags::REMOTE_READ);
        assert!(!fewer.contains(AccessFlags::REMOTE_READ) && fewer.intersects(AccessFlags::REMOTE_WRITE));
    }

    #[test]
    fn codes_become_sizes() {
        let sizes: Vec<u32> = Mtu::ALL.iter().filter_map(|mtu| mtu.bytes()).collect();
        assert_eq!(sizes, [256, 512, 1024, 2048, 4096]);
        assert_eq!((Mtu(0).bytes(), Mtu(40).bytes()), (None, None));
        assert!(WcOpcode::RECV_RDMA_WITH_IMM.is_receive() && !WcOpcode::RDMA_READ.is_receive());
    }
}
