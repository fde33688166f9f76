//! Both sides of a connection as those see them who feed them hostile bytes: property tests, and the fuzz targets
//! under `fuzz/`.
//!
//! Each function takes any bytes and checks what must hold whatever they are.

use super::{
    client::Connection,
    guard::{Guard, Opened},
    pipe::Pipe,
    server::Rehearsed,
    socket::Socket,
};
use std::{
    io::Write,
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};
use transport::secure::Secret;

/// One end of a connection, and the other, to which a hostile peer writes.
fn pair() -> (Pipe, UnixStream) {
    let (ours, theirs) = UnixStream::pair().expect("descriptors");
    theirs.set_nonblocking(true).expect("a socket");
    (Pipe::new(Socket::unix(ours).expect("a socket"), Guard::Open), theirs)
}

/// What ranks, or those who are taken for ranks, say to the rendezvous of a job of three: pieces of a byte that says which
/// of four connections, two bytes of length, and so many bytes. A piece of no bytes closes the connection.
pub fn ranks_say(script: &[u8]) {
    let mut now = Instant::now();
    let mut rehearsed = Rehearsed::new(3, now);
    let mut writers: Vec<UnixStream> = (0..4)
        .map(|_| {
            let (pipe, theirs) = pair();
            rehearsed.let_in(pipe);
            theirs
        })
        .collect();
    let mut rest = script;
    while let Some(([which, low, high], more)) = rest.split_first_chunk::<3>() {
        let len = usize::from(u16::from_le_bytes([*low, *high])).min(more.len());
        let (said, after) = more.split_at(len);
        let which = usize::from(*which) % writers.len();
        if said.is_empty() {
            let _ = writers[which].shutdown(std::net::Shutdown::Write);
        } else {
            let _ = writers[which].write(said);
        }
        rehearsed.turn(now);
        now += Duration::from_millis(7);
        rest = after;
    }
    drop(writers);
    rehearsed.turn(now);
    // Whoever waits has been told, or has gone.
    now += Duration::from_secs(10 * 366 * 24 * 3600);
    rehearsed.turn(now);
    rehearsed.assert_nobody_waits();
}

/// What a server, or who is taken for one, says to a rank.
pub fn server_says(bytes: &[u8]) {
    let (pipe, mut theirs) = pair();
    let mut connection = Connection::over(pipe, 1, 3, Duration::from_millis(50));
    let _ = theirs.write(bytes);
    let _ = theirs.shutdown(std::net::Shutdown::Write);
    let _ = connection.agree_on_pulling(None);
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

/// What a stranger says to the guard of a connection over TCP.
pub fn stranger_says(bytes: &[u8]) {
    let secret = Secret::from_bytes([7; 32]);
    let mut guard = Guard::responder(&secret).expect("random numbers");
    let (mut plain, mut answer, mut done) = (Vec::new(), Vec::new(), 0);
    while let Ok(Opened::Bytes(len)) = guard.open(&bytes[done..], &mut plain, &mut answer) {
        assert!(len > 0 && done + len <= bytes.len());
        done += len;
    }
    assert!(plain.is_empty() && !guard.is_trusted(), "a stranger was let in");
}

/// Text and bytes that lead to a rendezvous.
pub fn ways_there(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(list) = super::Address::list(text)
    {
        let written: Vec<String> = list.iter().map(ToString::to_string).collect();
        assert_eq!(super::Address::list(&written.join(",")), Ok(list), "what is written can be read");
    }
    if let Ok(bytes) = bytes.try_into() {
        let _ = super::UniqueId::from_bytes(bytes).map(|id| format!("{id:?}"));
    }
}
