//! Unique id: a rendezvous in 128 bytes, for programs that distribute it by means of their own.
//!
//! One process creates an id, which opens a rendezvous in that process, and passes the bytes to the other
//! processes. Then all ranks make a communicator of it. The bytes hold the job's secret: a process that has
//! them can join.
//!
//! Over a channel that others can read, an id without its secret can be passed on, if the ranks have a secret
//! in common: [`UniqueId::create_for_channel`], [`UniqueId::from_channel`].
//!
//! | bytes | content |
//! |---|---|
//! | 0..5 | `tbid` and the version of this layout |
//! | 5, 6..8 | number of addresses, and the port of all of them (big-endian) |
//! | 8..40 | secret |
//! | 40..56 | name of the Unix socket for ranks of the same host |
//! | 56..124 | four addresses: family (4 or 6), and 4 or 16 bytes |
//! | 124..128 | checksum of all bytes before |

use super::{
    Secret,
    address::Address,
    connect::ConnectSpec,
    environment::secret_of_env,
    interfaces::our_addresses,
    server::{Server, ServerSpec},
    unix::local_address,
};
use crate::error::{Error, Result};
use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{Mutex, PoisonError},
    time::Duration,
};
use xxhash_rust::xxh3::xxh3_64;

const MAGIC: [u8; 4] = *b"tbid";
const VERSION: u8 = 1;
const SECRET: usize = 8;
const NAME: usize = 40;
const ADDRESSES: usize = 56;
const CHECKSUM: usize = 124;
/// Family and 16 bytes.
const ADDRESS_BYTES: usize = 17;
/// Maximum number of addresses in an id.
const MAX_ADDRESSES: usize = 4;

/// Identifies a job to all of its ranks. Holds the job's secret, so pass it on as one.
#[derive(Clone, PartialEq, Eq)]
pub struct UniqueId([u8; UniqueId::BYTES]);

/// Ids created in this process and not used yet, with their servers.
static OPEN: Mutex<Vec<(UniqueId, Server)>> = Mutex::new(Vec::new());

impl UniqueId {
    /// Size of an id in bytes.
    pub const BYTES: usize = 128;

    /// Creates an id and opens its rendezvous in this process.
    ///
    /// The process must live as long as the job. Other hosts reach the rendezvous at the addresses of this
    /// host's interfaces, four at most.
    ///
    /// # Errors
    /// [`Error::System`] or [`Error::Rendezvous`] if the system refuses sockets, threads or random numbers.
    pub fn create() -> Result<UniqueId> {
        UniqueId::create_with(&Secret::generate().map_err(|e| Error::Rendezvous(e.to_string()))?)
    }

    /// Creates an id, and opens its rendezvous in this process, for a channel that others can read and write.
    ///
    /// If this process has `TBCCL_SECRET` or `TBCCL_SECRET_FILE`, the job's secret is derived from that one
    /// and from the random value that the returned bytes hold in its place. Otherwise the bytes are those of
    /// the id.
    ///
    /// # Errors
    /// [`Error::Rendezvous`] if the configured secret is malformed; otherwise as [`UniqueId::create`].
    pub fn create_for_channel() -> Result<[u8; UniqueId::BYTES]> {
        UniqueId::create_to_share(secret_of_env()?.as_ref())
    }

    fn create_to_share(shared: Option<&Secret>) -> Result<[u8; UniqueId::BYTES]> {
        let Some(shared) = shared else { return Ok(UniqueId::create()?.0) };
        let public = Secret::generate().map_err(|e| Error::Rendezvous(e.to_string()))?;
        let id = UniqueId::create_with(&derive(shared, &public)?)?;
        Ok(id.with_secret(&public).0)
    }

    /// Restores an id from the bytes of [`UniqueId::create_for_channel`].
    ///
    /// A process that has a configured secret, and one that has not, get ids of different secrets: the
    /// handshake fails.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the bytes are not those of an id; [`Error::Rendezvous`] if the
    /// configured secret is malformed.
    pub fn from_channel(bytes: [u8; UniqueId::BYTES]) -> Result<UniqueId> {
        UniqueId::from_shared(bytes, secret_of_env()?.as_ref())
    }

    fn from_shared(bytes: [u8; UniqueId::BYTES], shared: Option<&Secret>) -> Result<UniqueId> {
        let id = UniqueId::from_bytes(bytes)?;
        let Some(shared) = shared else { return Ok(id) };
        let secret = derive(shared, &id.secret())?;
        Ok(id.with_secret(&secret))
    }

    /// Creates an id with this secret and opens its rendezvous.
    fn create_with(secret: &Secret) -> Result<UniqueId> {
        let both = [IpAddr::from(Ipv4Addr::UNSPECIFIED), Ipv6Addr::UNSPECIFIED.into()];
        let listen = both.map(|ip| SocketAddr::new(ip, 0)).to_vec();
        let server = Server::start(&ServerSpec::network(0, listen.clone(), secret.clone()))
            // Not every host has both address families.
            .or_else(|error| {
                Server::start(&ServerSpec::network(0, listen[..1].to_vec(), secret.clone()))
                    .map_err(|_| error)
            })?;
        let port = server.addresses()[0].port();
        let has_v6 = server.addresses().iter().any(|address| address.is_ipv6() && address.port() == port);
        let ours: Vec<IpAddr> = our_addresses().into_iter().filter(|ip| ip.is_ipv4() || has_v6).collect();
        let id = UniqueId::new(secret, server.name(), port, &ours);
        OPEN.lock().unwrap_or_else(PoisonError::into_inner).push((id.clone(), server));
        Ok(id)
    }

    fn new(secret: &Secret, name: u128, port: u16, addresses: &[IpAddr]) -> UniqueId {
        let mut bytes = [0; UniqueId::BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = VERSION;
        bytes[5] = addresses.len().min(MAX_ADDRESSES) as u8;
        bytes[6..SECRET].copy_from_slice(&port.to_be_bytes());
        bytes[SECRET..NAME].copy_from_slice(&*secret.to_bytes());
        bytes[NAME..ADDRESSES].copy_from_slice(&name.to_be_bytes());
        for (slot, address) in bytes[ADDRESSES..CHECKSUM].chunks_exact_mut(ADDRESS_BYTES).zip(addresses) {
            match address {
                IpAddr::V4(ip) => {
                    slot[0] = 4;
                    slot[1..5].copy_from_slice(&ip.octets());
                }
                IpAddr::V6(ip) => {
                    slot[0] = 6;
                    slot[1..].copy_from_slice(&ip.octets());
                }
            }
        }
        let checksum = checksum(&bytes);
        bytes[CHECKSUM..].copy_from_slice(&checksum);
        UniqueId(bytes)
    }

    fn secret(&self) -> Secret {
        let mut bytes = [0; Secret::BYTES];
        bytes.copy_from_slice(&self.0[SECRET..NAME]);
        Secret::from_bytes(bytes)
    }

    /// Returns the same id with another secret.
    fn with_secret(mut self, secret: &Secret) -> UniqueId {
        self.0[SECRET..NAME].copy_from_slice(&*secret.to_bytes());
        let checksum = checksum(&self.0);
        self.0[CHECKSUM..].copy_from_slice(&checksum);
        self
    }

    /// Returns the bytes to pass on.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; UniqueId::BYTES] {
        &self.0
    }

    /// Restores an id from the bytes that another process passed on.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the bytes are not those of an id.
    pub fn from_bytes(bytes: [u8; UniqueId::BYTES]) -> Result<UniqueId> {
        let malformed = |what: &str| Err(Error::InvalidArgument(format!("invalid unique id: {what}")));
        let id = UniqueId(bytes);
        if bytes[..4] != MAGIC {
            return malformed("it does not begin like an id of tbccl; pass on all 128 bytes");
        }
        if bytes[4] != VERSION {
            return malformed("it was made by another version of tbccl; use the same version everywhere");
        }
        if checksum(&bytes) != bytes[CHECKSUM..] || id.connect_spec(Duration::ZERO).is_none() {
            return malformed("it was changed in transit; pass on all 128 bytes");
        }
        Ok(id)
    }

    /// Returns the connect spec of the rendezvous; `None` if the bytes are malformed.
    fn connect_spec(&self, timeout: Duration) -> Option<ConnectSpec> {
        let bytes = &self.0;
        let port = u16::from_be_bytes([bytes[6], bytes[7]]);
        let name = u128::from_be_bytes(bytes[NAME..ADDRESSES].try_into().ok()?);
        let mut addresses = Address::parse_list(&local_address(name)).ok()?;
        for slot in bytes[ADDRESSES..CHECKSUM].chunks_exact(ADDRESS_BYTES).take(usize::from(bytes[5])) {
            let ip: IpAddr = match slot[0] {
                4 => <[u8; 4]>::try_from(&slot[1..5]).ok()?.into(),
                6 => <[u8; 16]>::try_from(&slot[1..]).ok()?.into(),
                _ => return None,
            };
            addresses.push(Address::Tcp(ip.to_string(), port));
        }
        Some(ConnectSpec {
            addresses,
            own: None,
            secret: Some(self.secret()),
            timeout,
            rendezvous_host: None,
        })
    }

    /// Returns the connect spec, and the server if it runs in this process and is not taken yet.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the id is malformed.
    pub fn resolve(&self, timeout: Duration) -> Result<(ConnectSpec, Option<Server>)> {
        let connect_spec =
            self.connect_spec(timeout).ok_or_else(|| Error::InvalidArgument("invalid unique id".into()))?;
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        let at = open.iter().position(|(id, _)| id == self);
        Ok((connect_spec, at.map(|at| open.swap_remove(at).1)))
    }

    /// Closes the rendezvous, if it runs in this process and no rank of this process has joined it. Ranks
    /// that wait there are told the reason.
    pub fn discard(&self, why: &str) {
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        let server = open.iter().position(|(id, _)| id == self).map(|at| open.swap_remove(at).1);
        drop(open);
        // Its thread is waited for without the lock.
        if let Some(server) = server {
            server.close_because(why);
        }
    }
}

/// Derives the secret of an id from one that the ranks have in common.
fn derive(shared: &Secret, public: &Secret) -> Result<Secret> {
    shared.derive(&*public.to_bytes()).map_err(|e| Error::Rendezvous(e.to_string()))
}

/// Makes the bytes an id as far as its beginning and its checksum go.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn seal(bytes: &mut [u8; UniqueId::BYTES]) {
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4] = VERSION;
    let checksum = checksum(bytes);
    bytes[CHECKSUM..].copy_from_slice(&checksum);
}

fn checksum(bytes: &[u8; UniqueId::BYTES]) -> [u8; 4] {
    (xxh3_64(&bytes[..CHECKSUM]) as u32).to_le_bytes()
}

/// Omits the secret.
impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses = self.connect_spec(Duration::ZERO).map(|connect_spec| connect_spec.addresses);
        f.debug_struct("UniqueId").field("addresses", &addresses).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_leads_back_to_its_rendezvous() {
        let id = UniqueId::create().expect("a rendezvous");
        let duplicate = UniqueId::from_bytes(*id.as_bytes()).expect("the same bytes");
        let (connect_spec, server) = duplicate.resolve(Duration::ZERO).expect("an id");
        let server = server.expect("it is in this process");
        assert_eq!(connect_spec.addresses[0].to_string(), server.address());
        let ports: Vec<u16> = server.addresses().iter().map(SocketAddr::port).collect();
        assert!(
            matches!(&connect_spec.addresses[1], Address::Tcp(_, port) if ports.contains(port)),
            "{connect_spec:?}"
        );
        assert!(duplicate.resolve(Duration::ZERO).expect("an id").1.is_none(), "only one has it");
    }

    #[test]
    fn the_rendezvous_of_an_id_that_nobody_uses_can_be_closed() {
        let id = UniqueId::create().expect("a rendezvous");
        let port = u16::from_be_bytes([id.as_bytes()[6], id.as_bytes()[7]]);
        let connect = || std::net::TcpStream::connect(("127.0.0.1", port));
        connect().expect("it is open");
        id.discard("a test");
        connect().expect_err("it is closed");
        assert!(id.resolve(Duration::ZERO).expect("an id").1.is_none());
        id.discard("a test");
    }

    #[test]
    fn addresses_of_both_families_are_kept_and_the_secret_is_not_shown() {
        let secret = Secret::from_bytes([0xab; 32]);
        let addresses: Vec<IpAddr> = ["10.1.2.3", "fd00::7", "192.168.0.1", "1.2.3.4", "5.6.7.8"]
            .map(|text| text.parse().expect("an address"))
            .to_vec();
        let id = UniqueId::new(&secret, 77, 4711, &addresses);
        let connect_spec = id.connect_spec(Duration::ZERO).expect("ours");
        let text: Vec<String> = connect_spec.addresses[1..].iter().map(ToString::to_string).collect();
        assert_eq!(
            text,
            ["tcp://10.1.2.3:4711", "tcp://[fd00::7]:4711", "tcp://192.168.0.1:4711", "tcp://1.2.3.4:4711"]
        );
        assert_eq!(*connect_spec.secret.expect("a secret").to_bytes(), [0xab; 32]);
        let shown = format!("{id:?}");
        assert!(!shown.contains("abab") && !shown.contains("171"), "{shown}");
    }

    #[test]
    fn the_bytes_for_a_channel_hold_no_secret_where_ranks_have_one_in_common() {
        let shared = Secret::from_bytes([5; 32]);
        let bytes = UniqueId::create_to_share(Some(&shared)).expect("a rendezvous");
        let id = UniqueId::from_shared(bytes, Some(&shared)).expect("an id");
        let (ours, server) = id.resolve(Duration::ZERO).expect("an id");
        let server = server.expect("it is in this process");
        let secret = ours.secret.expect("a secret");
        assert_eq!(*secret.to_bytes(), *server.secret().expect("a secret").to_bytes());
        assert!(!bytes.windows(32).any(|part| part == *secret.to_bytes()), "the bytes hold it");
        // Processes without the common secret, or with another one, have another secret.
        for other in [None, Some(Secret::from_bytes([6; 32]))] {
            let theirs = UniqueId::from_shared(bytes, other.as_ref()).expect("an id");
            assert_ne!(*theirs.secret().to_bytes(), *secret.to_bytes());
        }
        let open = UniqueId::create_to_share(None).expect("a rendezvous");
        assert_eq!(UniqueId::from_shared(open, None).expect("an id").as_bytes(), &open);
    }

    #[test]
    fn bytes_that_are_no_id_are_refused() {
        let good = *UniqueId::new(&Secret::from_bytes([1; 32]), 1, 1, &[]).as_bytes();
        UniqueId::from_bytes(good).expect("an id");
        for (at, says) in
            [(0, "does not begin"), (4, "another version"), (5, "changed"), (99, "changed"), (127, "changed")]
        {
            let mut bytes = good;
            bytes[at] ^= 0x10;
            let error = UniqueId::from_bytes(bytes).expect_err("not ours").to_string();
            assert!(error.contains(says), "{at}: {error}");
        }
    }
}
