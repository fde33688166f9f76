//! Client of the key-value store by which PyTorch's processes find each other.
//!
//! torchrun's agent runs the store on `MASTER_PORT` before it starts any rank, so rank 0 can publish the
//! rendezvous there. The protocol is that of PyTorch's `TCPStore`: a byte for the query, then numbers in
//! native byte order; texts and values follow their length of eight bytes. This client implements only
//! setting a value and waiting for one.
//!
//! A client of the store can read and write all of it; see docs/security.md.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream, ToSocketAddrs},
    time::{Duration, Instant},
};

/// Number by which the store's server recognizes its clients.
const MAGIC: u32 = 0x3C85_F7CE;

const VALIDATE: u8 = 0;
const SET: u8 = 1;
const GET: u8 = 3;
const CHECK: u8 = 5;

/// Answer to [`CHECK`] if all keys exist.
const READY: u8 = 0;

/// Prefix that PyTorch's clients add to keys.
const PREFIX: &str = "/";

/// Maximum size of a value.
const MAX_VALUE_BYTES: u64 = 64 << 10;

/// Pause between attempts to connect, and between checks for a key.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// Timeout of one attempt to connect, and of one answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection to a store.
#[derive(Debug)]
pub(super) struct Store<S = TcpStream> {
    stream: S,
}

impl Store {
    /// Connects to the store, which may not be running yet.
    pub(super) fn connect(host: &str, port: u16, deadline: Instant) -> io::Result<Store> {
        loop {
            match Store::try_connect(host, port) {
                Ok(store) => return Ok(store),
                Err(e) if Instant::now() + RETRY_PAUSE > deadline => return Err(e),
                Err(_) => std::thread::sleep(RETRY_PAUSE),
            }
        }
    }

    fn try_connect(host: &str, port: u16) -> io::Result<Store> {
        let mut error = io::Error::new(ErrorKind::NotFound, format!("host `{host}` has no known address"));
        for address in (host, port).to_socket_addrs()? {
            match Store::open(address) {
                Ok(store) => return Ok(store),
                Err(e) => error = e,
            }
        }
        Err(error)
    }

    fn open(address: SocketAddr) -> io::Result<Store> {
        let stream = TcpStream::connect_timeout(&address, ANSWER_TIMEOUT)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
        let mut store = Store { stream };
        let mut request = vec![VALIDATE];
        request.extend_from_slice(&MAGIC.to_ne_bytes());
        store.stream.write_all(&request)?;
        Ok(store)
    }

    /// Returns the local address of the connection.
    pub(super) fn local_address(&self) -> io::Result<SocketAddr> {
        self.stream.local_addr()
    }
}

impl<S: Read + Write> Store<S> {
    /// Returns the client of a store that is reached by a stream.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn over(stream: S) -> Store<S> {
        Store { stream }
    }

    /// Sets a value.
    pub(super) fn set(&mut self, key: &str, value: &[u8]) -> io::Result<()> {
        let mut request = vec![SET];
        append(&mut request, &key_of(key));
        append(&mut request, value);
        self.stream.write_all(&request)?;
        // Setting has no answer; a check for the key confirms it.
        if self.has(key)? { Ok(()) } else { Err(invalid_data("the store did not keep the value")) }
    }

    /// Waits for a key and returns its value.
    pub(super) fn get(&mut self, key: &str, deadline: Instant) -> io::Result<Vec<u8>> {
        while !self.has(key)? {
            if Instant::now() >= deadline {
                return Err(ErrorKind::TimedOut.into());
            }
            std::thread::sleep(RETRY_PAUSE);
        }
        let mut request = vec![GET];
        append(&mut request, &key_of(key));
        self.stream.write_all(&request)?;
        let mut len = [0; 8];
        self.stream.read_exact(&mut len)?;
        let len = u64::from_ne_bytes(len);
        if len > MAX_VALUE_BYTES {
            return Err(invalid_data("this is not a store of PyTorch's, or another program has set the key"));
        }
        let mut value = vec![0; len as usize];
        self.stream.read_exact(&mut value)?;
        Ok(value)
    }

    fn has(&mut self, key: &str) -> io::Result<bool> {
        let mut request = vec![CHECK];
        request.extend_from_slice(&1u64.to_ne_bytes());
        append(&mut request, &key_of(key));
        self.stream.write_all(&request)?;
        let mut answer = [0];
        self.stream.read_exact(&mut answer)?;
        Ok(answer[0] == READY)
    }
}

fn key_of(key: &str) -> Vec<u8> {
    [PREFIX, key].concat().into_bytes()
}

fn append(request: &mut Vec<u8>, bytes: &[u8]) {
    request.extend_from_slice(&(bytes.len() as u64).to_ne_bytes());
    request.extend_from_slice(bytes);
}

fn invalid_data(why: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, why)
}
