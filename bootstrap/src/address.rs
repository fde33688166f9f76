//! Addresses of a rendezvous, and their text form.
//!
//! An address is `tcp://HOST:PORT` (an IPv6 address in brackets), `unix-abstract:NAME` or `unix:PATH`. A list
//! is separated by commas, for a host that is reached in several ways.

use super::{interfaces::with_scopes, unix::local_address};
use std::{
    fmt, io,
    net::{SocketAddr, ToSocketAddrs},
};

/// One address of a rendezvous.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    /// Name of a Unix socket in the abstract namespace of this host.
    Abstract(String),
    /// Path of a Unix socket on this host.
    Path(String),
    /// TCP host (name or number) and port.
    Tcp(String, u16),
    /// Name of a Unix socket on this host that another rank may open later.
    Awaited(u128),
}

impl Address {
    /// Parses a list of addresses that is separated by commas.
    ///
    /// # Errors
    /// A sentence that quotes the malformed address and shows the expected form.
    pub(crate) fn parse_list(text: &str) -> Result<Vec<Address>, String> {
        let addresses: Result<Vec<Address>, String> =
            text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(Address::parse).collect();
        match addresses {
            Ok(addresses) if addresses.is_empty() => Err(Address::malformed(text)),
            other => other,
        }
    }

    fn malformed(text: &str) -> String {
        format!("`{text}` is not the address of a rendezvous; expected tcp://HOST:PORT")
    }

    fn parse(text: &str) -> Result<Address, String> {
        if let Some(name) = text.strip_prefix("unix-abstract:").filter(|name| !name.is_empty()) {
            return Ok(Address::Abstract(name.to_owned()));
        }
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            return Ok(Address::Path(path.to_owned()));
        }
        let rest = text.strip_prefix("tcp://").ok_or_else(|| Address::malformed(text))?;
        let (host, port) = host_and_port(rest).ok_or_else(|| Address::malformed(text))?;
        Ok(Address::Tcp(host, port))
    }

    /// Whether this is a TCP address.
    pub(crate) fn is_remote(&self) -> bool {
        matches!(self, Address::Tcp(..))
    }
}

/// Parses a host and a port: `host:7777`, `10.0.0.1:7777`, `[fe80::1%en0]:7777`.
///
/// Returns `None` for other text, and for port 0.
#[must_use]
pub fn host_and_port(text: &str) -> Option<(String, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    let port = port.parse().ok().filter(|port| *port != 0)?;
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let has_colon = bare.is_none() && host.contains(':');
    let host = bare.unwrap_or(host);
    (!host.is_empty() && !has_colon && !host.contains(['[', ']'])).then(|| (host.to_owned(), port))
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Abstract(name) => write!(f, "unix-abstract:{name}"),
            Address::Path(path) => write!(f, "unix:{path}"),
            Address::Tcp(host, port) if host.contains(':') => write!(f, "tcp://[{host}]:{port}"),
            Address::Tcp(host, port) => write!(f, "tcp://{host}:{port}"),
            Address::Awaited(name) => f.write_str(&local_address(*name)),
        }
    }
}

/// Resolves a TCP address to socket addresses; other addresses resolve to none. A link-local address without
/// a scope resolves to one for each interface over which it may be reached.
///
/// # Errors
/// The resolver's error, if the host name has no known address.
pub(crate) fn resolve(address: &Address) -> io::Result<Vec<SocketAddr>> {
    let Address::Tcp(host, port) = address else { return Ok(Vec::new()) };
    let found: Vec<SocketAddr> = (host.as_str(), *port)
        .to_socket_addrs()
        .map_err(|e| io::Error::new(e.kind(), format!("host `{host}` has no known address: {e}")))?
        .flat_map(with_scopes)
        .collect();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_are_written() {
        let text =
            "unix-abstract:tbccl-1,tcp://10.0.0.1:80, tcp://[fe80::1%en0]:7777,unix:/a/b,tcp://host-1:1";
        let list = Address::parse_list(text).expect("addresses");
        assert_eq!(list.len(), 5);
        assert_eq!(list[2], Address::Tcp("fe80::1%en0".into(), 7777));
        let written: Vec<String> = list.iter().map(ToString::to_string).collect();
        assert_eq!(written.join(","), text.replace(", ", ","));
    }

    #[test]
    fn what_is_no_address_is_an_error_that_shows_one() {
        for text in [
            "",
            ",",
            "10.0.0.1:80",
            "tcp://host",
            "tcp://:80",
            "tcp://h:0",
            "tcp://h:70000",
            "tcp://::1:80",
            "unix:",
            "tcp://[a]b]:80",
        ] {
            let error = Address::parse_list(text).expect_err(text);
            assert!(error.contains("tcp://HOST:PORT"), "{error}");
        }
    }
}
