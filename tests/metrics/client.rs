//! A client of the endpoint: HTTP over a socket, with a time limit.

use crate::openmetrics::Scrape;
use std::{
    io::{self, Read, Write},
    net::{TcpListener, TcpStream},
    time::Duration,
};
use support::eventually;

/// Time limit of one request.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Returns a port that is free now.
pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    listener.local_addr().expect("it has one").port()
}

/// Sends bytes to a port of this host, and returns the whole answer.
pub(crate) fn answer(port: u16, request: &[u8]) -> io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(request)?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

/// Returns the head and the body of the answer to a GET of a client that takes OpenMetrics.
pub(crate) fn get(port: u16, path: &str) -> io::Result<(String, String)> {
    get_with(port, path, "Accept: application/openmetrics-text; version=1.0.0\r\n")
}

/// Returns the same for a client with other headers.
pub(crate) fn get_with(port: u16, path: &str, headers: &str) -> io::Result<(String, String)> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n");
    let text = answer(port, request.as_bytes())?;
    let (head, body) = text.split_once("\r\n\r\n").ok_or(io::ErrorKind::InvalidData)?;
    Ok((head.to_owned(), body.to_owned()))
}

/// Returns the first good scrape for which a condition holds.
pub(crate) fn scrape_until(port: u16, what: &str, mut holds: impl FnMut(&Scrape) -> bool) -> Scrape {
    let mut found = None;
    eventually(what, || {
        let Ok((head, body)) = get(port, "/metrics") else { return false };
        if !head.starts_with("HTTP/1.1 200 OK\r\n") {
            return false;
        }
        assert!(head.contains("Content-Type: application/openmetrics-text; version=1.0.0"), "{head}");
        let scrape = Scrape::parse(&body);
        if holds(&scrape) {
            found = Some(scrape);
        }
        found.is_some()
    });
    found.expect("it was found")
}

/// Returns the process that answers at a port, once one does.
pub(crate) fn owner(port: u16) -> Option<u32> {
    let (_, body) = get(port, "/job").ok()?;
    body.lines().find_map(|line| line.strip_prefix("process ")?.parse().ok())
}
