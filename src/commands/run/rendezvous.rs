//! The rendezvous of a job: in this process, over TCP if ranks run on other hosts.

use super::{Failed, hosts::Across};
use crate::launch::Rendezvous;
use bootstrap::{Secret, Server, ServerSpec};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The meeting place of a job.
#[derive(Debug)]
pub(super) struct Meeting {
    server: Server,
    secret: Option<Secret>,
    /// Addresses of this host for others, as the hostfile has them.
    own_addresses: Vec<String>,
}

/// Opens it.
pub(super) fn open(ranks: u32, across: Across) -> Result<Meeting, Failed> {
    if !across.others {
        let server = Server::start(&ServerSpec::local(ranks)).map_err(Failed::new)?;
        return Ok(Meeting { server, secret: None, own_addresses: Vec::new() });
    }
    let secret = Secret::generate().map_err(Failed::new)?;
    // The interface by which other hosts connect is unknown; connections without the secret are rejected on
    // all.
    let any = |address: IpAddr| SocketAddr::new(address, 0);
    let (four, six) = (any(Ipv4Addr::UNSPECIFIED.into()), any(Ipv6Addr::UNSPECIFIED.into()));
    let start = |listen: Vec<SocketAddr>| Server::start(&ServerSpec::network(ranks, listen, secret.clone()));
    // A host may have no IPv6.
    let server = start(vec![four, six]).or_else(|_| start(vec![four])).map_err(Failed::new)?;
    Ok(Meeting { server, secret: Some(secret), own_addresses: across.own_addresses })
}

impl Rendezvous for Meeting {
    fn address(&self) -> String {
        self.server.address().to_owned()
    }

    /// Returns the address for ranks of this host, and the one by which other hosts reach it.
    fn address_here(&self, reached: Option<&str>) -> String {
        match &self.secret {
            Some(_) => format!("{},{}", self.server.address(), self.address_from(reached)),
            None => self.server.address().to_owned(),
        }
    }

    /// The hostfile's addresses come first, since they are meant for this. The address from which ssh
    /// connected, or this host's name, is the next best.
    fn address_from(&self, reached: Option<&str>) -> String {
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let last = reached.map_or(name, str::to_owned);
        let mut hosts: Vec<&str> = self.own_addresses.iter().map(String::as_str).collect();
        if !hosts.contains(&last.as_str()) {
            hosts.push(&last);
        }
        let ways = hosts.into_iter().filter_map(|host| way(host, self.server.addresses()));
        ways.collect::<Vec<_>>().join(",")
    }

    fn secret(&self) -> Option<String> {
        self.secret.as_ref().map(|secret| secret.to_hex().to_string())
    }

    fn report_exit(&self, rank: u32, pid: u32, how: &str) {
        self.server.report_exit(rank, pid, how);
    }

    fn report_success(&self, rank: u32, pid: u32) {
        self.server.report_success(rank, pid);
    }
}

/// The way to one of our ports through an address or a name of ours.
fn way(host: &str, listening: &[SocketAddr]) -> Option<String> {
    // `fe80::1%en0` is an address of IPv6 as well.
    let is_six = host.contains(':');
    let port = listening.iter().find(|address| address.is_ipv6() == is_six)?.port();
    Some(if is_six { format!("tcp://[{host}]:{port}") } else { format!("tcp://{host}:{port}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_address_has_its_port() {
        let listening = ["0.0.0.0:1000", "[::]:2000"].map(|text| text.parse().expect("an address"));
        assert_eq!(way("10.0.0.1", &listening).as_deref(), Some("tcp://10.0.0.1:1000"));
        assert_eq!(way("fd00::1", &listening).as_deref(), Some("tcp://[fd00::1]:2000"));
        assert_eq!(way("mac0.local", &listening).as_deref(), Some("tcp://mac0.local:1000"));
        assert_eq!(way("fd00::1", &listening[..1]), None);
    }

    #[test]
    fn others_are_told_of_all_our_addresses_and_the_secret() {
        let across = Across { others: true, own_addresses: vec!["10.0.0.1".to_owned()] };
        let meeting = open(2, across).expect("a free port");
        let ways = meeting.address_from(Some("10.0.0.9"));
        let hosts: Vec<&str> = ways.split(',').map(|way| way.rsplit_once(':').expect("a port").0).collect();
        assert_eq!(hosts, ["tcp://10.0.0.1", "tcp://10.0.0.9"]);
        assert_eq!(meeting.address_here(Some("10.0.0.9")), format!("{},{ways}", meeting.address()));
        assert_eq!(meeting.secret().expect("one").len(), 64);
        assert!(open(2, Across::default()).expect("a socket").secret().is_none());
    }
}
