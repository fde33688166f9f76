//! Binding of sockets to network interfaces, so that their packets take a cable whatever the routes say.
//!
//! Two ports with link-local addresses are in the same network, and a route leads to one of them only.

use super::socket::interface_is_running;
use rustix::fd::AsFd;
use socket2::SockRef;
use std::io;

/// A network interface of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Device {
    pub(super) name: String,
    pub(super) index: u32,
}

impl Device {
    /// Whether the interface is up and its cable is plugged in, as far as the system tells.
    pub(super) fn is_running(&self) -> bool {
        let socket = std::net::UdpSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, 0));
        socket.is_ok_and(|socket| interface_is_running(socket.as_fd(), &self.name) != Some(false))
    }

    /// Binds a socket to this interface.
    ///
    /// # Errors
    /// The system's. Linux before 5.7 refuses it to users without the right `CAP_NET_RAW`.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub(super) fn bind(&self, socket: impl AsFd, _is_ipv4: bool) -> io::Result<()> {
        SockRef::from(&socket).bind_device(Some(self.name.as_bytes()))
    }

    /// Binds a socket to this interface.
    ///
    /// # Errors
    /// The system's.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    pub(super) fn bind(&self, socket: impl AsFd, is_ipv4: bool) -> io::Result<()> {
        let (socket, index) = (SockRef::from(&socket), std::num::NonZeroU32::new(self.index));
        if is_ipv4 { socket.bind_device_by_index_v4(index) } else { socket.bind_device_by_index_v6(index) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_bound_to_an_interface_that_exists() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let name = if cfg!(target_os = "linux") { "lo" } else { "lo0" };
        assert!(Device { name: name.into(), index: 1 }.bind(&socket, true).is_ok());
        assert!(Device { name: "nowhere7".into(), index: 99_999 }.bind(&socket, true).is_err());
    }
}
