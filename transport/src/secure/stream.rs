//! A handshake over a blocking stream, with a deadline.

use super::{Handshake, SecureError, Session};
use std::{
    io::{self, ErrorKind, Read, Write},
    net::TcpStream,
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

/// A blocking stream with a timeout for reads and writes.
pub trait TimedStream: Read + Write {
    /// Sets the timeout of all further reads and writes; `None` for no timeout.
    ///
    /// # Errors
    /// The system's error.
    fn set_timeout(&self, max: Option<Duration>) -> io::Result<()>;
}

impl TimedStream for TcpStream {
    fn set_timeout(&self, max: Option<Duration>) -> io::Result<()> {
        self.set_read_timeout(max)?;
        self.set_write_timeout(max)
    }
}

impl TimedStream for UnixStream {
    fn set_timeout(&self, max: Option<Duration>) -> io::Result<()> {
        self.set_read_timeout(max)?;
        self.set_write_timeout(max)
    }
}

/// Runs a handshake until `deadline`.
///
/// It reads no byte after the handshake. Afterwards the stream has no timeout.
///
/// # Errors
/// Any [`SecureError`]; the stream is of no further use then.
pub fn handshake_over_stream<S: TimedStream>(
    stream: &mut S,
    mut handshake: Handshake,
    deadline: Instant,
) -> Result<Session, SecureError> {
    let mut bytes = [0; 256];
    while !handshake.is_done() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(SecureError::Late);
        }
        stream.set_timeout(Some(left))?;
        let outgoing = handshake.outgoing();
        if !outgoing.is_empty() {
            let written = zero_if_interrupted(stream.write(outgoing))?;
            handshake.mark_written(written);
            continue;
        }
        let wanted = handshake.bytes_wanted().min(bytes.len());
        match stream.read(&mut bytes[..wanted]) {
            Ok(0) => return Err(SecureError::Closed),
            other => {
                let got = zero_if_interrupted(other)?;
                handshake.receive(&bytes[..got])?;
            }
        }
    }
    stream.set_timeout(None)?;
    handshake.finish()
}

/// Treats a timeout and a signal as 0 bytes: the caller's deadline decides.
fn zero_if_interrupted(done: io::Result<usize>) -> Result<usize, SecureError> {
    match done {
        Err(e)
            if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted) =>
        {
            Ok(0)
        }
        Err(e) if matches!(e.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => {
            Err(SecureError::Closed)
        }
        other => Ok(other?),
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Purpose, Secret},
        *,
    };
    use std::thread;

    const PATIENCE: Duration = Duration::from_secs(20);

    #[test]
    fn two_ends_meet_and_what_follows_is_left_to_them() {
        let secret = Secret::generate().expect("random numbers");
        let (mut a, mut b) = UnixStream::pair().expect("sockets");
        let until = Instant::now() + PATIENCE;
        thread::scope(|scope| {
            scope.spawn(|| {
                let handshake = Handshake::initiator(&secret, Purpose::Bootstrap, b"me").expect("begun");
                let session = handshake_over_stream(&mut a, handshake, until).expect("the same secret");
                assert_eq!(session.hello(), b"you");
                a.write_all(b"what follows").expect("written");
            });
            let handshake = Handshake::responder(&secret, Purpose::Bootstrap, b"you").expect("begun");
            let session = handshake_over_stream(&mut b, handshake, until).expect("the same secret");
            assert_eq!(session.hello(), b"me");
            let mut rest = [0; 12];
            b.read_exact(&mut rest).expect("what follows");
            assert_eq!(&rest, b"what follows");
        });
    }

    #[test]
    fn who_has_another_secret_is_refused_on_both_sides() {
        let secret = || Secret::generate().expect("random numbers");
        let (mut a, mut b) = UnixStream::pair().expect("sockets");
        let until = Instant::now() + PATIENCE;
        thread::scope(|scope| {
            scope.spawn(move || {
                let handshake = Handshake::initiator(&secret(), Purpose::Data, b"").expect("begun");
                let error = handshake_over_stream(&mut a, handshake, until).expect_err("another secret");
                assert!(matches!(error, SecureError::Closed), "{error}");
            });
            let handshake = Handshake::responder(&secret(), Purpose::Data, b"").expect("begun");
            let error = handshake_over_stream(&mut b, handshake, until).expect_err("another secret");
            assert!(matches!(error, SecureError::Secret), "{error}");
            drop(b);
        });
    }

    #[test]
    fn who_is_silent_or_drips_is_given_up_at_the_deadline() {
        let secret = Secret::generate().expect("random numbers");
        for drips in [false, true] {
            let (mut a, mut b) = UnixStream::pair().expect("sockets");
            let (until, began) = (Instant::now() + Duration::from_millis(200), Instant::now());
            let handshake = Handshake::responder(&secret, Purpose::Data, b"").expect("begun");
            let mut other = Handshake::initiator(&secret, Purpose::Data, b"").expect("begun");
            let error = thread::scope(|scope| {
                scope.spawn(|| {
                    while drips && began.elapsed() < PATIENCE && other.outgoing().len() > 1 {
                        if a.write_all(&other.outgoing()[..1]).is_err() {
                            break;
                        }
                        other.mark_written(1);
                        thread::sleep(Duration::from_millis(50));
                    }
                });
                let error = handshake_over_stream(&mut b, handshake, until).expect_err("never done");
                drop(b);
                error
            });
            assert!(matches!(error, SecureError::Late), "{error}");
        }
    }
}
