//! The address at which a host answers requests for metrics.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    str::FromStr,
};

/// Address of the endpoint of metrics: a port of the loopback interface, or of an address that is named.
///
/// Metrics name hosts, ranks and devices, and the endpoint asks for no password. So only processes of the
/// host reach it unless an option names another address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricsAddress(SocketAddr);

impl MetricsAddress {
    /// Returns the address to listen at.
    #[must_use]
    pub fn to_listen(self) -> SocketAddr {
        self.0
    }

    /// Returns the address at which a process of this host reaches the endpoint.
    #[must_use]
    pub fn to_connect(self) -> SocketAddr {
        let ip = match self.0.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => std::net::Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        SocketAddr::new(ip, self.0.port())
    }
}

/// Message for a text that is no address.
const EXPECTED: &str =
    "must be a port from 1 to 65535, or an address and a port, as 0.0.0.0:9400 or [::]:9400";

impl FromStr for MetricsAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<MetricsAddress, String> {
        let loopback = |port: &str| {
            let is_number = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
            let port = port.parse().ok().filter(|_| is_number)?;
            Some(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port))
        };
        let port = text.strip_prefix("localhost:").unwrap_or(text);
        let address = loopback(port).or_else(|| text.parse().ok()).filter(|address| address.port() != 0);
        address.map(MetricsAddress).ok_or_else(|| EXPECTED.to_owned())
    }
}

impl fmt::Display for MetricsAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_one_of_the_loopback_interface() {
        for (text, listens, connects) in [
            ("9400", "127.0.0.1:9400", "127.0.0.1:9400"),
            ("localhost:9400", "127.0.0.1:9400", "127.0.0.1:9400"),
            ("0.0.0.0:9400", "0.0.0.0:9400", "127.0.0.1:9400"),
            ("[::]:9400", "[::]:9400", "[::1]:9400"),
            ("10.0.0.7:80", "10.0.0.7:80", "10.0.0.7:80"),
        ] {
            let address: MetricsAddress = text.parse().expect(text);
            assert_eq!(address.to_string(), listens);
            assert_eq!(address.to_connect().to_string(), connects);
        }
    }

    #[test]
    fn texts_that_are_no_address_are_refused() {
        for text in ["", "0", "65536", "-1", "+80", "port", "host:80", "1.2.3.4", "1.2.3.4:0", ":80"] {
            let error = text.parse::<MetricsAddress>().expect_err(text);
            assert!(error.contains("0.0.0.0:9400"), "{error}");
        }
    }
}
