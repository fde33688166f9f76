//! Listening sockets of a rendezvous.
//!
//! A Unix socket is always open, for the ranks of this host; TCP sockets are open on request.

use super::super::unix::{BACKLOG, Folder, listen_unix, random_name};
use crate::error::{Error, Result};
use rustix::{
    io::Errno,
    net::{bind, listen, sockopt},
};
use std::{
    io,
    net::{SocketAddr, TcpListener},
    os::unix::net::UnixListener,
    sync::Arc,
};

/// Listening sockets, which need not be served yet: connections wait in the kernel's backlog.
#[derive(Debug)]
pub(crate) struct Sockets {
    pub unix: UnixListener,
    /// Name of the Unix socket.
    pub name: u128,
    pub networks: Vec<TcpListener>,
    /// Folder of the Unix socket's file, if it has one. Removed with the last owner.
    pub(super) folder: Option<Arc<Folder>>,
}

impl Sockets {
    /// Opens a Unix socket, and a TCP socket at each of the addresses.
    pub(crate) fn open(addresses: &[SocketAddr]) -> Result<Sockets> {
        let refused = |e| Error::system("opening the rendezvous socket", e);
        let name = random_name().map_err(refused)?;
        let (unix, folder) = listen_unix(name).map_err(refused)?;
        Ok(Sockets { unix, name, networks: listen_tcp_all(addresses)?, folder: folder.map(Arc::new) })
    }

    /// Opens a Unix socket with a name that other ranks derive on their own.
    pub(crate) fn open_with_name(name: u128) -> Result<Sockets> {
        let (unix, folder) =
            listen_unix(name).map_err(|e| Error::system("opening the rendezvous socket", e))?;
        Ok(Sockets { unix, name, networks: Vec::new(), folder: folder.map(Arc::new) })
    }

    /// Returns the bound TCP addresses.
    pub(crate) fn addresses(&self) -> Result<Vec<SocketAddr>> {
        let bound: io::Result<Vec<SocketAddr>> = self.networks.iter().map(TcpListener::local_addr).collect();
        bound.map_err(|e| Error::system("querying the bound port", e))
    }

    /// Duplicates the sockets. Only one of the duplicates may be served at a time, since either could accept
    /// a connection.
    pub(crate) fn duplicate(&self) -> io::Result<Sockets> {
        Ok(Sockets {
            unix: self.unix.try_clone()?,
            name: self.name,
            networks: self.networks.iter().map(TcpListener::try_clone).collect::<io::Result<_>>()?,
            folder: self.folder.clone(),
        })
    }
}

/// Opens the TCP sockets. Port 0 lets the system choose a port, which all sockets share if possible.
fn listen_tcp_all(addresses: &[SocketAddr]) -> Result<Vec<TcpListener>> {
    let mut listeners: Vec<TcpListener> = Vec::new();
    let mut chosen = None;
    for address in addresses {
        let wish = SocketAddr::new(address.ip(), chosen.unwrap_or(0));
        let listener = match (address.port(), chosen) {
            (0, Some(_)) => listen_tcp(wish).or_else(|_| listen_tcp(*address)),
            _ => listen_tcp(*address),
        };
        let listener = listener.map_err(|errno| refused(*address, errno))?;
        let bound = listener.local_addr().map_err(|e| Error::system("querying the bound port", e))?;
        chosen.get_or_insert(bound.port());
        listeners.push(listener);
    }
    Ok(listeners)
}

fn listen_tcp(address: SocketAddr) -> Result<TcpListener, Errno> {
    let socket = super::super::socket::tcp_socket_for(&address)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if address.is_ipv6() {
        // Each address family is listened on only upon request.
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    bind(&socket, &address)?;
    listen(&socket, BACKLOG)?;
    Ok(TcpListener::from(socket))
}

/// Returns the error for an address that cannot be listened on, with the remedy.
fn refused(address: SocketAddr, errno: Errno) -> Error {
    let (ip, port) = (address.ip(), address.port());
    let remedy = match errno {
        Errno::ADDRINUSE => format!(
            "port {port} is in use; end the program that has it (`ss -ltnp 'sport = :{port}'` shows it), \
             choose another port, or 0 to let the system choose"
        ),
        Errno::ADDRNOTAVAIL => {
            format!("{ip} is not an address of this host; `ip address` or `ifconfig` lists those it has")
        }
        Errno::ACCESS => format!("port {port} is for root only; choose one from 1024 on, or 0"),
        Errno::AFNOSUPPORT => format!("this host has no {}", if ip.is_ipv4() { "IPv4" } else { "IPv6" }),
        other => return Error::system(format!("listening on {address} for ranks"), other),
    };
    Error::Rendezvous(format!("can't listen on {address} for ranks: {remedy}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(address: &str) -> Result<Vec<TcpListener>> {
        listen_tcp_all(&[address.parse().expect("an address")])
    }

    #[test]
    fn a_port_in_use_and_a_foreign_address_are_errors_with_the_remedy() {
        let taken = on("127.0.0.1:0").expect("a port");
        let address = taken[0].local_addr().expect("bound");
        let error = on(&address.to_string()).expect_err("in use").to_string();
        assert!(error.contains(&format!("port {} is in use", address.port())), "{error}");
        let error = on("192.0.2.1:0").expect_err("a documentation address").to_string();
        assert!(error.contains("192.0.2.1 is not an address of this host"), "{error}");
    }

    #[test]
    fn both_families_get_the_same_port_where_the_system_chooses() {
        let addresses = ["127.0.0.1:0", "[::1]:0"].map(|text| text.parse().expect("an address"));
        let Ok(listeners) = listen_tcp_all(&addresses) else {
            return support::missing("IPv6");
        };
        let ports: Vec<u16> = listeners.iter().map(|l| l.local_addr().expect("bound").port()).collect();
        // Another program may have taken the second port; then the socket has another one.
        assert_eq!(ports.len(), 2);
        assert!(ports.iter().all(|port| *port != 0));
    }
}
