//! One HTTP request and its answer, over a connection that may be hostile.
//!
//! A client has [`TIMEOUT`] for the whole exchange and [`MAX_REQUEST_BYTES`] for its request, and gets one
//! answer. Nothing that it sends has an effect.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

/// Time for a request and its answer, and for connecting.
pub(super) const TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum size of a request's head.
const MAX_REQUEST_BYTES: usize = 8 << 10;

/// Maximum number of headers in a request.
const MAX_HEADERS: usize = 64;

/// A request, as far as it counts.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) path: String,
    /// Whether the client accepts OpenMetrics text.
    pub(super) takes_openmetrics: bool,
    /// Whether only the head of the answer is wanted.
    is_head: bool,
}

/// Status, media type and body of an answer.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: &'static str,
    pub(super) media_type: &'static str,
    pub(super) body: String,
}

/// Media type of texts for people.
pub(super) const PLAIN: &str = "text/plain; charset=utf-8";

impl Answer {
    pub(super) fn plain(status: &'static str, body: impl Into<String>) -> Answer {
        Answer { status, media_type: PLAIN, body: body.into() }
    }
}

/// Reads a request from a connection, and writes the answer that `answer` makes.
///
/// # Errors
/// The system's error, [`ErrorKind::TimedOut`] for a client that is slow.
pub(super) fn exchange(stream: &mut TcpStream, answer: impl FnOnce(&Request) -> Answer) -> io::Result<()> {
    let deadline = Instant::now() + TIMEOUT;
    let (answer, is_head) = match read_request(stream, deadline)? {
        Ok(request) => (answer(&request), request.is_head),
        Err(refusal) => (refusal, false),
    };
    let Answer { status, media_type, body } = answer;
    let mut bytes = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {media_type}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    )
    .into_bytes();
    if !is_head {
        bytes.extend_from_slice(body.as_bytes());
    }
    // Collecting the answer may have taken a part of the client's time.
    write_until(stream, &bytes, deadline.max(Instant::now() + TIMEOUT))
}

/// Answers a connection beyond the limit at once, without reading its request.
pub(super) fn refuse(stream: &TcpStream, details: &str) {
    let body = format!("{details}too many requests at a time\n");
    let answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: {PLAIN}\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    );
    // The answer fits an empty socket; a client that can't take it gets none.
    let _ = stream.set_nonblocking(true).and_then(|()| (&*stream).write(answer.as_bytes()));
}

/// Reads the head of a request; returns the answer to one that is wrong.
fn read_request(stream: &mut TcpStream, deadline: Instant) -> io::Result<Result<Request, Answer>> {
    let mut head = Vec::new();
    let mut bytes = [0; 1024];
    loop {
        stream.set_read_timeout(Some(left(deadline)?))?;
        let count = match stream.read(&mut bytes) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        head.extend_from_slice(&bytes[..count]);
        if let Some(parsed) = parse(&head) {
            return Ok(parsed);
        }
        if head.len() > MAX_REQUEST_BYTES {
            return Ok(Err(Answer::plain(
                "431 Request Header Fields Too Large",
                "the request is too long\n",
            )));
        }
    }
}

/// Parses the head of a request; `None` if it is not complete.
fn parse(head: &[u8]) -> Option<Result<Request, Answer>> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(head) {
        Ok(httparse::Status::Partial) => None,
        Ok(httparse::Status::Complete(_)) => {
            let (method, target) = (request.method.unwrap_or_default(), request.path.unwrap_or_default());
            let path = target.split(['?', '#']).next().unwrap_or_default().to_owned();
            let takes_openmetrics = request.headers.iter().any(|header| {
                header.name.eq_ignore_ascii_case("accept")
                    && String::from_utf8_lossy(header.value).contains("application/openmetrics-text")
            });
            Some(match method {
                "GET" | "HEAD" => Ok(Request { path, takes_openmetrics, is_head: method == "HEAD" }),
                _ => Err(Answer::plain("405 Method Not Allowed", "only GET and HEAD are answered\n")),
            })
        }
        Err(error) => Some(Err(Answer::plain("400 Bad Request", format!("not a request: {error}\n")))),
    }
}

fn write_until(stream: &mut TcpStream, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.set_write_timeout(Some(left(deadline)?))?;
        match stream.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Returns the time until the deadline.
fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn status(head: &[u8]) -> Option<&'static str> {
        parse(head).map(|parsed| parsed.map_or_else(|answer| answer.status, |_| "200"))
    }

    #[test]
    fn a_request_is_complete_with_its_empty_line() {
        let head = b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\n";
        for len in 0..head.len() {
            assert_eq!(status(&head[..len]), None, "{len}");
        }
        let request = parse(head).expect("complete").expect("valid");
        assert_eq!(request, Request { path: "/metrics".into(), takes_openmetrics: false, is_head: false });
    }

    #[test]
    fn a_client_says_whether_it_takes_openmetrics() {
        let takes = |headers: &str| {
            let head = format!("GET /metrics HTTP/1.1\r\n{headers}\r\n");
            parse(head.as_bytes()).expect("complete").expect("valid").takes_openmetrics
        };
        assert!(!takes(""));
        assert!(!takes("Accept: */*\r\n"));
        assert!(takes("accept: application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.2\r\n"));
    }

    #[test]
    fn other_methods_and_garbage_are_refused() {
        assert_eq!(status(b"POST / HTTP/1.1\r\n\r\n"), Some("405 Method Not Allowed"));
        assert_eq!(status(b"\x16\x03\x01\x02\x00\x01"), Some("400 Bad Request"));
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(MAX_HEADERS + 1));
        assert_eq!(status(many.as_bytes()), Some("400 Bad Request"));
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
            let _ = parse(&bytes);
        }
    }
}
