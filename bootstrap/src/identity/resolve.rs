//! Resolution of launch information: opens the rendezvous if this rank has to, or finds its address.

use super::{Discovery, Identity, LaunchInfo, store::Store};
use crate::{
    Secret,
    address::Address,
    connect::ConnectSpec,
    error::{Error, Result},
    interfaces::{our_addresses, with_scopes},
    server::{Server, ServerSpec},
    unix::name_here,
};
use serde::{Deserialize, Serialize};
use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::{Duration, Instant},
};
use xxhash_rust::xxh3::xxh3_64;

/// Identity of a process, and the server if it runs here.
#[derive(Debug)]
pub struct Resolved {
    /// Identity of this process.
    pub identity: Identity,
    /// Rendezvous server, if this process runs it.
    pub server: Option<Server>,
}

/// Entry that rank 0 writes to PyTorch's store.
#[derive(Serialize, Deserialize)]
struct StoredRendezvous {
    /// List of addresses, as in `TBCCL_BOOTSTRAP`.
    addresses: String,
    /// Secret of the job, if the environment sets none.
    secret: Option<String>,
}

impl LaunchInfo {
    /// Opens the rendezvous if this rank has to, or finds its address within `timeout`.
    ///
    /// # Errors
    /// [`Error::Rendezvous`] if the address is taken, or the store fails or does not answer in time;
    /// [`Error::System`] if the system refuses sockets or threads.
    pub fn resolve(&self, timeout: Duration) -> Result<Resolved> {
        let (rendezvous, server) = self.rendezvous(timeout)?;
        let (rank, size, hosts_rendezvous) = (self.rank, self.size, server.is_some());
        Ok(Resolved { identity: Identity::new(rank, size, rendezvous, hosts_rendezvous), server })
    }

    fn rendezvous(&self, timeout: Duration) -> Result<(ConnectSpec, Option<Server>)> {
        let spec_only = |rendezvous: ConnectSpec| (rendezvous, None);
        match &self.discovery {
            Discovery::Known(rendezvous) => Ok(spec_only(rendezvous.clone())),
            Discovery::Single => {
                Ok(server_and_spec(Server::start(&ServerSpec::local(1, None))?, None, Vec::new()))
            }
            Discovery::LocalPort { host, port } if self.rank == 0 => {
                Ok(server_and_spec(self.open_local_port(host, *port)?, None, Vec::new()))
            }
            Discovery::LocalPort { port, .. } => {
                Ok(spec_only(awaited_spec(&port_socket(*port), None, timeout)))
            }
            Discovery::LocalStep { step, secret } if self.rank == 0 => {
                let server = self.open_local_step(step, secret.clone())?;
                Ok(server_and_spec(server, secret.clone(), Vec::new()))
            }
            Discovery::LocalStep { step, secret } => {
                Ok(spec_only(awaited_spec(&step_socket(step), secret.clone(), timeout)))
            }
            Discovery::Root { host, port, secret } if self.rank == 0 => {
                let listen = listen_addresses(host, *port);
                let remote_addresses = root_addresses(host, *port);
                Ok(server_and_spec(open(self.size, &listen, secret)?, Some(secret.clone()), remote_addresses))
            }
            Discovery::Root { host, port, secret } => {
                let addresses = vec![Address::Tcp(host.clone(), *port)];
                Ok(spec_only(ConnectSpec {
                    addresses,
                    own: None,
                    secret: Some(secret.clone()),
                    timeout,
                    rendezvous_host: None,
                }))
            }
            Discovery::Store { host, port, key, secret } => {
                let deadline = Instant::now() + timeout;
                let failed = |what: &str, e: &io::Error| {
                    Error::Rendezvous(format!(
                        "rank {} {what} PyTorch's store at {host}:{port} (MASTER_ADDR, MASTER_PORT): {e}; is \
                         torchrun's agent still running there? Without it, set TBCCL_ROOT=HOST:PORT and \
                         TBCCL_SECRET on all ranks",
                        self.rank
                    ))
                };
                let mut store =
                    Store::connect(host, *port, deadline).map_err(|e| failed("can't reach", &e))?;
                if self.rank > 0 {
                    let value = store
                        .get(key, deadline)
                        .map_err(|e| failed("did not find rank 0's rendezvous in time in", &e))?;
                    return Ok(spec_only(decode_entry(&value, secret.as_ref(), timeout)?));
                }
                let own_ip = store.local_address().map_err(|e| failed("can't use", &e))?;
                let (server, stored, new_secret) =
                    open_and_publish(self.size, host, own_ip.ip(), secret.as_ref())?;
                let value = serde_json::to_vec(&stored).map_err(|e| failed("can't write to", &e.into()))?;
                store.set(key, &value).map_err(|e| failed("can't write to", &e))?;
                let remote_addresses = Address::parse_list(&stored.addresses).unwrap_or_default();
                Ok(server_and_spec(
                    server,
                    Some(new_secret),
                    remote_addresses.into_iter().filter(Address::is_remote).collect(),
                ))
            }
        }
    }
}

impl LaunchInfo {
    /// Opens a rendezvous for ranks of this host that derive its name from a port.
    fn open_local_port(&self, host: &str, port: u16) -> Result<Server> {
        Server::start_with_name(self.size, socket_name(&port_socket(port)), None).map_err(|error| match error
        {
            Error::System { source, .. } if source.kind() == io::ErrorKind::AddrInUse => {
                Error::Rendezvous(format!(
                    "another job of this host uses the rendezvous {host}:{port}; choose another port \
                 (mlx.launch: --starting-port, or --nccl-port), or wait for its end"
                ))
            }
            other => other,
        })
    }

    /// Opens a rendezvous for the tasks of a Slurm step on this host.
    fn open_local_step(&self, step: &str, secret: Option<Secret>) -> Result<Server> {
        let name = socket_name(&step_socket(step));
        Server::start_with_name(self.size, name, secret).map_err(|error| match error {
            Error::System { source, .. } if source.kind() == io::ErrorKind::AddrInUse => {
                Error::Rendezvous(format!(
                    "the rendezvous of Slurm's step {step} is in use: rank 0 has a communicator of the step, \
                     or another program has taken the name; split that communicator, or set \
                     TBCCL_ROOT=localhost:PORT on all tasks, with another port for each job"
                ))
            }
            other => other,
        })
    }
}

/// Returns what a socket for ranks that know a port is named after.
fn port_socket(port: u16) -> String {
    format!("port {port}")
}

/// Returns what a socket for the tasks of a step is named after.
fn step_socket(step: &str) -> String {
    format!("step {step}")
}

/// Returns the socket name that ranks of this host and user derive from what all of them know.
fn socket_name(known: &str) -> u128 {
    let user = rustix::process::geteuid().as_raw();
    name_here(xxh3_64(format!("a rendezvous of user {user} by {known}").as_bytes()))
}

/// Returns the connect spec of a rank that waits for rank 0 to open a socket with a derived name.
fn awaited_spec(known: &str, secret: Option<Secret>, timeout: Duration) -> ConnectSpec {
    let addresses = vec![Address::Awaited(socket_name(known))];
    ConnectSpec { addresses, own: None, secret, timeout, rendezvous_host: None }
}

/// Returns the connect spec of a server that this rank has opened, which this rank reaches over its Unix
/// socket.
///
/// `secret` is for connections between ranks. `remote_addresses` tell on which network other ranks reach this
/// rank.
fn server_and_spec(
    server: Server,
    secret: Option<Secret>,
    remote_addresses: Vec<Address>,
) -> (ConnectSpec, Option<Server>) {
    let mut addresses = Address::parse_list(server.address()).unwrap_or_default();
    addresses.extend(remote_addresses);
    (
        ConnectSpec { addresses, own: None, secret, timeout: Duration::ZERO, rendezvous_host: None },
        Some(server),
    )
}

/// Opens a rendezvous. A host without IPv6 listens on IPv4 alone.
fn open(ranks: u32, listen: &[SocketAddr], secret: &Secret) -> Result<Server> {
    let start =
        |listen: &[SocketAddr]| Server::start(&ServerSpec::network(ranks, listen.to_vec(), secret.clone()));
    start(listen).or_else(|error| {
        let v4: Vec<SocketAddr> = listen.iter().copied().filter(SocketAddr::is_ipv4).collect();
        if v4.is_empty() || v4.len() == listen.len() { Err(error) } else { start(&v4).map_err(|_| error) }
    })
}

/// Returns the addresses to listen on so that other ranks can connect to `host`.
///
/// A numeric host is its own address. For a name, all addresses are listened on, since a host may resolve its
/// own name differently from other hosts.
fn listen_addresses(host: &str, port: u16) -> Vec<SocketAddr> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return with_scopes(SocketAddr::new(ip, port));
    }
    if host == "localhost" {
        return vec![SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port)];
    }
    [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()].map(|ip| SocketAddr::new(ip, port)).into()
}

/// Returns the addresses at which other ranks reach rank 0: its host, or all addresses of this host if that
/// is what the host stands for.
fn root_addresses(host: &str, port: u16) -> Vec<Address> {
    match host.parse::<IpAddr>() {
        Ok(ip) if ip.is_unspecified() => {
            let ours = our_addresses().into_iter().filter(|ours| ours.is_ipv4() == ip.is_ipv4());
            ours.map(|ip| Address::Tcp(ip.to_string(), port)).collect()
        }
        _ => vec![Address::Tcp(host.to_owned(), port)],
    }
}

/// Opens a rendezvous on a port that the system chooses. Other ranks reach it as `host`, or at the address
/// from which this rank reached the store.
fn open_and_publish(
    ranks: u32,
    host: &str,
    own_ip: IpAddr,
    secret: Option<&Secret>,
) -> Result<(Server, StoredRendezvous, Secret)> {
    let new_secret = match secret {
        Some(secret) => secret.clone(),
        None => Secret::generate().map_err(|e| Error::Rendezvous(e.to_string()))?,
    };
    let is_numeric = host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    let is_loopback_only = own_ip.is_loopback() && (is_numeric || host == "localhost");
    let listen = if is_loopback_only { vec![SocketAddr::new(own_ip, 0)] } else { listen_addresses("", 0) };
    let server = open(ranks, &listen, &new_secret)?;
    let mut addresses = vec![server.address().to_owned()];
    for bound in server.addresses() {
        let is_same_family = |ip: IpAddr| ip.is_ipv4() == bound.is_ipv4();
        if is_loopback_only || (!own_ip.is_loopback() && is_same_family(own_ip)) {
            addresses.push(Address::Tcp(own_ip.to_string(), bound.port()).to_string());
        }
        if !is_loopback_only {
            addresses.push(Address::Tcp(host.to_owned(), bound.port()).to_string());
        }
    }
    addresses.dedup();
    let stored = secret.is_none().then(|| new_secret.to_hex().to_string());
    Ok((server, StoredRendezvous { addresses: addresses.join(","), secret: stored }, new_secret))
}

/// Reads rank 0's entry from a store that is reached by a stream, as the other ranks do, and writes one, as
/// rank 0 does.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn read_store(stream: impl io::Read + io::Write) -> Option<ConnectSpec> {
    let mut store = Store::over(stream);
    let value = store.get("key", Instant::now());
    let _ = store.set("key", b"value");
    decode_entry(&value.ok()?, None, Duration::ZERO).ok()
}

/// Decodes the entry of rank 0.
fn decode_entry(value: &[u8], secret: Option<&Secret>, timeout: Duration) -> Result<ConnectSpec> {
    let malformed = |why: String| {
        Error::Rendezvous(format!("the entry of rank 0 in PyTorch's store is malformed: {why}"))
    };
    let stored: StoredRendezvous = serde_json::from_slice(value).map_err(|e| malformed(e.to_string()))?;
    let addresses = Address::parse_list(&stored.addresses).map_err(malformed)?;
    let secret = match (secret, stored.secret) {
        (Some(secret), _) => Some(secret.clone()),
        (None, Some(digits)) => Some(Secret::from_hex(&digits).map_err(|e| malformed(e.to_string()))?),
        (None, None) => {
            return Err(Error::Rendezvous(
                "rank 0 has TBCCL_SECRET or TBCCL_SECRET_FILE and this rank has not: set it on all ranks \
                 or on none"
                    .into(),
            ));
        }
    };
    Ok(ConnectSpec { addresses, own: None, secret, timeout, rendezvous_host: None })
}
