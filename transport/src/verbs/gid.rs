//! GIDs, the addresses of ports.

use std::{fmt, net::Ipv6Addr};

/// A GID, the address of a port, in network byte order.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// Whether the table entry is empty.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        u128::from_be_bytes(self.0) == 0
    }

    /// Whether the address is IPv4-mapped, `::ffff:a.b.c.d`.
    #[must_use]
    pub const fn is_ipv4_mapped(self) -> bool {
        self.address().to_ipv4_mapped().is_some()
    }

    /// Whether the address is link-local: `fe80::`, or an IPv4 address in 169.254.0.0/16.
    #[must_use]
    pub const fn is_link_local(self) -> bool {
        match self.address().to_ipv4_mapped() {
            Some(address) => address.is_link_local(),
            None => self.address().is_unicast_link_local(),
        }
    }

    const fn address(self) -> Ipv6Addr {
        Ipv6Addr::from_octets(self.0)
    }
}

impl From<verbs_sys::Gid> for Gid {
    fn from(gid: verbs_sys::Gid) -> Gid {
        Gid(gid.0)
    }
}

impl From<Gid> for verbs_sys::Gid {
    fn from(gid: Gid) -> verbs_sys::Gid {
        verbs_sys::Gid(gid.0)
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address().fmt(f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(text: &str) -> Gid {
        Gid(text.parse::<Ipv6Addr>().expect("an address").octets())
    }

    #[test]
    fn kinds_of_addresses() {
        for (text, ipv4, local) in [
            ("::ffff:169.254.3.1", true, true),
            ("::ffff:10.0.0.1", true, false),
            ("fe80::1", false, true),
            ("fd00::1", false, false),
        ] {
            let gid = gid(text);
            assert_eq!((gid.is_ipv4_mapped(), gid.is_link_local()), (ipv4, local), "{text}");
            assert_eq!(gid.to_string(), text);
            assert!(!gid.is_empty());
        }
        assert!(Gid::default().is_empty());
    }
}
