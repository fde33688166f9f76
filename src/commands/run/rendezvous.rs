//! The job's rendezvous server: in this process, over TCP if ranks run on other hosts.

use super::{CommandError, hosts::HostSetup};
use crate::launch::Rendezvous;
use bootstrap::{Secret, Server, ServerSpec};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The rendezvous server of a job.
#[derive(Debug)]
pub(super) struct JobRendezvous {
    server: Server,
    secret: Secret,
    /// Addresses of this host in the hostfile.
    local_addresses: Vec<String>,
}

/// Starts the server.
pub(super) fn open(ranks: u32, setup: HostSetup) -> Result<JobRendezvous, CommandError> {
    let secret = Secret::generate().map_err(CommandError::new)?;
    if !setup.has_remote {
        let spec = ServerSpec::local(ranks, Some(secret.clone())).with_exit_reports();
        let server = Server::start(&spec).map_err(CommandError::new)?;
        return Ok(JobRendezvous { server, secret, local_addresses: Vec::new() });
    }
    // The interface by which other hosts connect is unknown, so the server listens on all of them; it rejects
    // connections without the secret.
    let any = |address: IpAddr| SocketAddr::new(address, 0);
    let (four, six) = (any(Ipv4Addr::UNSPECIFIED.into()), any(Ipv6Addr::UNSPECIFIED.into()));
    let start = |listen: Vec<SocketAddr>| {
        Server::start(&ServerSpec::network(ranks, listen, secret.clone()).with_exit_reports())
    };
    // The host may lack IPv6.
    let server = start(vec![four, six]).or_else(|_| start(vec![four])).map_err(CommandError::new)?;
    Ok(JobRendezvous { server, secret, local_addresses: setup.local_addresses })
}

impl Rendezvous for JobRendezvous {
    fn address(&self) -> String {
        self.server.address().to_owned()
    }

    /// Returns the address for ranks of this host, and the one by which other hosts reach it, without the
    /// other host's scope.
    fn address_here(&self, reached: Option<&str>) -> String {
        let reached = reached.map(|address| address.split('%').next().unwrap_or_default());
        match self.server.addresses() {
            [] => self.server.address().to_owned(),
            _ => format!("{},{}", self.server.address(), self.address_from(reached)),
        }
    }

    /// The hostfile's addresses come first, since they are meant for this purpose. The address from which ssh
    /// connected, or this host's name, follows.
    fn address_from(&self, reached: Option<&str>) -> String {
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let last = reached.map_or(name, str::to_owned);
        let mut hosts: Vec<&str> = self.local_addresses.iter().map(String::as_str).collect();
        if !hosts.contains(&last.as_str()) {
            hosts.push(&last);
        }
        let addresses = hosts.into_iter().filter_map(|host| address_on(host, self.server.addresses()));
        addresses.collect::<Vec<_>>().join(",")
    }

    fn secret(&self) -> Option<String> {
        Some(self.secret.to_hex().to_string())
    }

    fn report_exit(&self, rank: u32, pid: u32, how: &str) {
        self.server.report_exit(rank, pid, how);
    }

    fn report_success(&self, rank: u32, pid: u32) {
        self.server.report_success(rank, pid);
    }
}

/// Returns the URL of the server at an address or name of this host.
fn address_on(host: &str, listening: &[SocketAddr]) -> Option<String> {
    // A scoped address such as `fe80::1%en0` is IPv6.
    let is_ipv6 = host.contains(':');
    let port = listening.iter().find(|address| address.is_ipv6() == is_ipv6)?.port();
    Some(if is_ipv6 { format!("tcp://[{host}]:{port}") } else { format!("tcp://{host}:{port}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_address_has_its_port() {
        let listening = ["0.0.0.0:1000", "[::]:2000"].map(|text| text.parse().expect("an address"));
        assert_eq!(address_on("10.0.0.1", &listening).as_deref(), Some("tcp://10.0.0.1:1000"));
        assert_eq!(address_on("fd00::1", &listening).as_deref(), Some("tcp://[fd00::1]:2000"));
        assert_eq!(address_on("mac0.local", &listening).as_deref(), Some("tcp://mac0.local:1000"));
        assert_eq!(address_on("fd00::1", &listening[..1]), None);
    }

    #[test]
    fn others_are_told_of_all_our_addresses_and_the_secret() {
        let setup = HostSetup { has_remote: true, local_addresses: vec!["10.0.0.1".to_owned()] };
        let rendezvous = open(2, setup).expect("a free port");
        let addresses = rendezvous.address_from(Some("10.0.0.9"));
        let hosts: Vec<&str> =
            addresses.split(',').map(|address| address.rsplit_once(':').expect("a port").0).collect();
        assert_eq!(hosts, ["tcp://10.0.0.1", "tcp://10.0.0.9"]);
        assert_eq!(
            rendezvous.address_here(Some("10.0.0.9")),
            format!("{},{addresses}", rendezvous.address())
        );
        let scoped = |list: String| list.contains("%en5");
        assert!(scoped(rendezvous.address_from(Some("fe80::1%en5"))), "en5 is the name of the other host");
        assert!(!scoped(rendezvous.address_here(Some("fe80::1%en5"))));
        assert_eq!(rendezvous.secret().expect("one").len(), 64);
        let local = open(2, HostSetup::default()).expect("a socket");
        assert_eq!(local.address_here(None), local.address(), "no other host has to reach it");
        assert_eq!(local.secret().expect("one").len(), 64);
    }
}
