//! Test harness: feeds arbitrary bytes to both ends of a connection, for property tests and the fuzz targets
//! under `fuzz/`.
//!
//! Each function takes any bytes and asserts the invariants that hold for all of them.

use super::{
    client::Connection,
    frame_stream::FrameStream,
    record_layer::{Decoded, RecordLayer},
    server::InMemoryServer,
    socket::Socket,
};
use std::{
    io::Write,
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};
use transport::secure::Secret;

/// Returns one end of a connection, and the socket of its hostile peer.
fn pair() -> (FrameStream, UnixStream) {
    let (local, peer) = UnixStream::pair().expect("descriptors");
    peer.set_nonblocking(true).expect("a socket");
    (FrameStream::new(Socket::unix(local).expect("a socket"), RecordLayer::Open), peer)
}

/// Feeds a rendezvous of three ranks with messages over four connections.
///
/// `script` is a sequence of records: the connection's number (one byte), a length (two bytes,
/// little-endian), and as many bytes to send. An empty record closes the connection.
pub fn feed_server(script: &[u8]) {
    let mut now = Instant::now();
    let mut server = InMemoryServer::new(3, now);
    let mut writers: Vec<UnixStream> = (0..4)
        .map(|_| {
            let (frames, peer) = pair();
            server.add_connection(frames);
            peer
        })
        .collect();
    let mut rest = script;
    while let Some(([which, low, high], more)) = rest.split_first_chunk::<3>() {
        let len = usize::from(u16::from_le_bytes([*low, *high])).min(more.len());
        let (message, after) = more.split_at(len);
        let which = usize::from(*which) % writers.len();
        if message.is_empty() {
            let _ = writers[which].shutdown(std::net::Shutdown::Write);
        } else {
            let _ = writers[which].write(message);
        }
        server.step(now);
        now += Duration::from_millis(7);
        rest = after;
    }
    drop(writers);
    server.step(now);
    // Every rank that waited has been answered by now, or has left.
    now += Duration::from_secs(10 * 366 * 24 * 3600);
    server.step(now);
    server.assert_all_finished();
}

/// Feeds a rank with bytes from a server.
pub fn feed_rank(bytes: &[u8]) {
    let (frames, mut peer) = pair();
    let mut connection = Connection::over(frames, Duration::from_millis(50));
    let _ = peer.write(bytes);
    let _ = peer.shutdown(std::net::Shutdown::Write);
    let _ = connection.start(None);
    let _ = connection.exchange(b"hello");
    let mut notices = 0;
    while let Some(notice) = connection.notice(Duration::ZERO) {
        if notice == super::Notice::ServerGone {
            return;
        }
        notices += 1;
        assert!(notices <= bytes.len(), "every notice takes bytes");
    }
}

/// Feeds the record layer of a TCP connection, at either end, with bytes of an unauthenticated peer.
pub fn feed_handshake(bytes: &[u8]) {
    let secret = Secret::from_bytes([7; 32]);
    feed_record_layer(RecordLayer::responder(&secret).expect("random numbers"), bytes);
    feed_record_layer(RecordLayer::initiator(&secret).expect("random numbers"), bytes);
}

fn feed_record_layer(mut record_layer: RecordLayer, bytes: &[u8]) {
    let (mut plain, mut answer, mut done) = (Vec::new(), Vec::new(), 0);
    while let Ok(Decoded::Bytes(len)) = record_layer.open(&bytes[done..], &mut plain, &mut answer) {
        assert!(len > 0 && done + len <= bytes.len());
        done += len;
    }
    assert!(plain.is_empty() && !record_layer.is_trusted(), "a stranger was let in");
}

/// Parses addresses and unique ids from text and bytes.
pub fn parse_addresses(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(list) = super::address::Address::parse_list(text)
    {
        let written: Vec<String> = list.iter().map(ToString::to_string).collect();
        assert_eq!(
            super::address::Address::parse_list(&written.join(",")),
            Ok(list),
            "what is written can be read"
        );
    }
    if let Ok(bytes) = bytes.try_into()
        && let Ok(id) = super::UniqueId::from_bytes(bytes)
    {
        assert_eq!(id.as_bytes(), &bytes);
        assert!(!format!("{id:?}").is_empty());
    }
    let _ = super::UniqueId::from_bytes(with_checksum(bytes)).map(|id| format!("{id:?}"));
}

/// Returns the bytes as a unique id whose checksum is right, so that a fuzzer gets past the checksum.
fn with_checksum(bytes: &[u8]) -> [u8; super::UniqueId::BYTES] {
    let mut id = [0; super::UniqueId::BYTES];
    let len = bytes.len().min(id.len());
    id[..len].copy_from_slice(&bytes[..len]);
    super::unique_id::seal(&mut id);
    id
}
