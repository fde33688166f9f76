//! Bringing it about that the ranks of a job meet: opening the rendezvous where this rank is the one to do it, and
//! finding out where it is otherwise.

use super::{Announced, Identity, Meeting, store::Store};
use crate::{
    Address, Place, Secret, Server, ServerSpec,
    error::{Error, Result},
};
use serde::{Deserialize, Serialize};
use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::{Duration, Instant},
};
use xxhash_rust::xxh3::xxh3_128;

/// Who this process is, now that it is known where the others are, and the rendezvous if this rank has opened it.
#[derive(Debug)]
pub struct Met {
    /// Identity of this process.
    pub identity: Identity,
    /// Rendezvous server, if this process runs it.
    pub server: Option<Server>,
}

/// What rank 0 tells the others through PyTorch's store.
#[derive(Serialize, Deserialize)]
struct Told {
    /// As in `TBCCL_BOOTSTRAP`.
    addresses: String,
    /// The secret, where the ranks have none beforehand.
    secret: Option<String>,
}

impl Announced {
    /// Opens the rendezvous if that is this rank's part, or finds out where it is, within a time.
    pub fn meet(&self, patience: Duration) -> Result<Met> {
        let (place, server) = self.place(patience)?;
        let (rank, size, keeps) = (self.rank, self.size, server.is_some());
        Ok(Met { identity: Identity { rank, size, place, keeps, descent: None }, server })
    }

    fn place(&self, patience: Duration) -> Result<(Place, Option<Server>)> {
        let at = |place: Place| (place, None);
        match &self.meeting {
            Meeting::At(place) => Ok(at(place.clone())),
            Meeting::Alone => Ok(opened(Server::start(&ServerSpec::local(1))?, None, Vec::new())),
            Meeting::Here { host, port } if self.rank == 0 => {
                Ok(opened(self.open_here(host, *port)?, None, Vec::new()))
            }
            Meeting::Here { port, .. } => {
                let addresses = vec![Address::Coming(name_of(*port))];
                Ok(at(Place { addresses, secret: None, patience, keeper: None }))
            }
            Meeting::Root { host, port, secret } if self.rank == 0 => {
                let listen = everywhere(host, *port);
                let others = vec![Address::Tcp(host.clone(), *port)];
                Ok(opened(open(self.size, &listen, secret)?, Some(secret.clone()), others))
            }
            Meeting::Root { host, port, secret } => {
                let addresses = vec![Address::Tcp(host.clone(), *port)];
                Ok(at(Place { addresses, secret: Some(secret.clone()), patience, keeper: None }))
            }
            Meeting::Store { host, port, key, secret } => {
                let deadline = Instant::now() + patience;
                let failed = |what: &str, e: &io::Error| {
                    Error::Rendezvous(format!(
                        "rank {} {what} PyTorch's store at {host}:{port} (MASTER_ADDR, MASTER_PORT): {e}; is torchrun's \
                         agent still running there? Without it, set TBCCL_ROOT=HOST:PORT and TBCCL_SECRET on all ranks",
                        self.rank
                    ))
                };
                let mut store =
                    Store::connect(host, *port, deadline).map_err(|e| failed("can't reach", &e))?;
                if self.rank > 0 {
                    let value = store.get(key, deadline).map_err(|e| {
                        failed("waited in vain for rank 0 to open the rendezvous and to say so in", &e)
                    })?;
                    return Ok(at(place_in(&value, secret.as_ref(), patience)?));
                }
                let ours = store.our_address().map_err(|e| failed("can't use", &e))?;
                let (server, told, made) = open_and_tell(self.size, host, ours.ip(), secret.as_ref())?;
                let value = serde_json::to_vec(&told).map_err(|e| failed("can't write to", &e.into()))?;
                store.set(key, &value).map_err(|e| failed("can't write to", &e))?;
                let others = Address::list(&told.addresses).unwrap_or_default();
                Ok(opened(server, Some(made), others.into_iter().filter(Address::is_remote).collect()))
            }
        }
    }
}

impl Announced {
    /// Opens a rendezvous for ranks of this host that know it by a port.
    fn open_here(&self, host: &str, port: u16) -> Result<Server> {
        Server::start_by_name(self.size, name_of(port)).map_err(|error| match error {
            Error::System { source, .. } if source.kind() == io::ErrorKind::AddrInUse => Error::Rendezvous(format!(
                "another job of this host meets at {host}:{port}; choose another port (mlx.launch: --starting-port, or \
                 --nccl-port), or wait for its end"
            )),
            other => other,
        })
    }
}

/// By what ranks of this host and user that have a port in common know their rendezvous.
fn name_of(port: u16) -> u128 {
    let user = rustix::process::geteuid().as_raw();
    xxh3_128(format!("a rendezvous of user {user} by port {port}").as_bytes())
}

/// The rendezvous that this rank has opened, which it reaches by the socket of this host. The secret is for connections
/// between ranks. How others reach the rendezvous says on which network they reach this rank.
fn opened(server: Server, secret: Option<Secret>, others: Vec<Address>) -> (Place, Option<Server>) {
    let mut addresses = Address::list(server.address()).unwrap_or_default();
    addresses.extend(others);
    (Place { addresses, secret, patience: Duration::ZERO, keeper: None }, Some(server))
}

/// Opens a rendezvous; not every host has both families.
fn open(ranks: u32, listen: &[SocketAddr], secret: &Secret) -> Result<Server> {
    let start =
        |listen: &[SocketAddr]| Server::start(&ServerSpec::network(ranks, listen.to_vec(), secret.clone()));
    start(listen).or_else(|error| {
        let v4: Vec<SocketAddr> = listen.iter().copied().filter(SocketAddr::is_ipv4).collect();
        if v4.is_empty() || v4.len() == listen.len() { Err(error) } else { start(&v4).map_err(|_| error) }
    })
}

/// Where to listen so that others reach us at `host`: there, if it is a number; else everywhere, since a host may know
/// its own name by another address than others do.
fn everywhere(host: &str, port: u16) -> Vec<SocketAddr> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return vec![SocketAddr::new(ip, port)];
    }
    if host == "localhost" {
        return vec![SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port)];
    }
    [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()].map(|ip| SocketAddr::new(ip, port)).into()
}

/// Opens a rendezvous on a port that the system chooses, for others that know our host as `host` or reach us as we have
/// reached the store.
fn open_and_tell(
    ranks: u32,
    host: &str,
    ours: IpAddr,
    secret: Option<&Secret>,
) -> Result<(Server, Told, Secret)> {
    let made = match secret {
        Some(secret) => secret.clone(),
        None => Secret::generate().map_err(|e| Error::Rendezvous(e.to_string()))?,
    };
    let is_numeric = host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    let stays_here = ours.is_loopback() && (is_numeric || host == "localhost");
    let listen = if stays_here { vec![SocketAddr::new(ours, 0)] } else { everywhere("", 0) };
    let server = open(ranks, &listen, &made)?;
    let mut addresses = vec![server.address().to_owned()];
    for bound in server.addresses() {
        let is_ours = |ip: IpAddr| ip.is_ipv4() == bound.is_ipv4();
        if stays_here || (!ours.is_loopback() && is_ours(ours)) {
            addresses.push(Address::Tcp(ours.to_string(), bound.port()).to_string());
        }
        if !stays_here {
            addresses.push(Address::Tcp(host.to_owned(), bound.port()).to_string());
        }
    }
    addresses.dedup();
    let told = secret.is_none().then(|| made.to_hex().to_string());
    Ok((server, Told { addresses: addresses.join(","), secret: told }, made))
}

/// What rank 0 has told.
fn place_in(value: &[u8], secret: Option<&Secret>, patience: Duration) -> Result<Place> {
    let wrong =
        |why: String| Error::Rendezvous(format!("what rank 0 said in PyTorch's store is not ours: {why}"));
    let told: Told = serde_json::from_slice(value).map_err(|e| wrong(e.to_string()))?;
    let addresses = Address::list(&told.addresses).map_err(wrong)?;
    let secret = match (secret, told.secret) {
        (Some(secret), _) => Some(secret.clone()),
        (None, Some(digits)) => Some(Secret::from_hex(&digits).map_err(|e| wrong(e.to_string()))?),
        (None, None) => {
            return Err(Error::Rendezvous(
                "rank 0 has TBCCL_SECRET or TBCCL_SECRET_FILE and this rank has not: set it on all ranks or on none"
                    .into(),
            ));
        }
    };
    Ok(Place { addresses, secret, patience, keeper: None })
}
