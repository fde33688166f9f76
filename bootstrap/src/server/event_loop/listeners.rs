//! Where guests come in: as many at a time as there are places for those who have not said who they are.

use super::{
    super::{guard::Guard, pipe::Pipe, socket::Socket},
    entrance::{GREETING, PROOF},
    guest::{Guest, Stage},
    listen::same_user,
    serving::Serving,
};
use mio::{Interest, Token, unix::SourceFd};
use rustix::fd::{AsRawFd, RawFd};
use std::{
    io::ErrorKind,
    net::TcpListener,
    os::unix::net::UnixListener,
    time::{Duration, Instant},
};

/// How long nobody is taken in when the system refuses.
const PAUSE: Duration = Duration::from_millis(10);

/// The most connections taken in at a time, before those that are there have their turn.
const BATCH: usize = 64;

/// Where guests come in.
#[derive(Debug)]
pub(super) enum Door {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Door {
    pub(super) fn raw_fd(&self) -> RawFd {
        match self {
            Door::Unix(listener) => listener.as_raw_fd(),
            Door::Tcp(listener) => listener.as_raw_fd(),
        }
    }
}

/// Why nobody is taken in for now.
enum Full {
    /// Nobody is at the door.
    Nobody,
    /// Until then.
    Until(Instant),
    /// Others have their turn first.
    Later,
}

impl Serving {
    /// Takes in those who are at the doors, as many as there is place for.
    pub(super) fn take_in(&mut self, now: Instant) {
        if self.paused.is_some_and(|until| until > now) {
            return;
        }
        self.paused = None;
        for at in std::mem::take(&mut self.knocking) {
            if self.doors.get(at).is_none() {
                continue;
            }
            match self.take_in_at(at, now) {
                Full::Nobody => {}
                Full::Later => {
                    self.knocking.insert(at);
                }
                Full::Until(then) => {
                    self.knocking.insert(at);
                    self.paused = Some(then);
                }
            }
        }
    }

    fn take_in_at(&mut self, at: usize, now: Instant) -> Full {
        for _ in 0..BATCH {
            let is_remote = matches!(self.doors[at], Door::Tcp(_));
            if is_remote && !self.entrance.has_place() {
                match self.entrance.crowded_out(now) {
                    Some(token) => self.send_away(token, &"others are waiting to come in", now),
                    None => return Full::Until(self.entrance.next_turn().unwrap_or(now + PAUSE)),
                }
            }
            let came = match &self.doors[at] {
                Door::Unix(listener) => listener.accept().map(|(stream, _)| {
                    same_user(&stream).then(|| Socket::unix(stream).map(|socket| (socket, Guard::Open)))
                }),
                Door::Tcp(listener) => listener.accept().map(|(stream, _)| {
                    self.secret.as_ref().map(|secret| Ok((Socket::tcp(stream)?, Guard::responder(secret)?)))
                }),
            };
            match came {
                // A connection that is broken already is nobody.
                Ok(Some(Ok((socket, guard)))) => self.let_in(socket, guard, now),
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Full::Nobody,
                Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
                // Out of descriptors, most likely: others may be closed meanwhile.
                Err(_) => return Full::Until(now + PAUSE),
            }
        }
        Full::Later
    }

    /// From now on whoever comes to our doors meets those who serve them next. Who has come in stays.
    pub(super) fn close_doors(&mut self) {
        for door in std::mem::take(&mut self.doors) {
            // The sockets stay open elsewhere, so that closing ours would not end our interest in them. One that the
            // system does not know any more tells us nothing either.
            let _ = self.poll.registry().deregister(&mut SourceFd(&door.raw_fd()));
        }
        self.knocking.clear();
    }

    fn let_in(&mut self, mut socket: Socket, guard: Guard, now: Instant) {
        let token = Token(self.next_token);
        self.next_token += 1;
        let both = Interest::READABLE | Interest::WRITABLE;
        if self.poll.registry().register(&mut socket, token, both).is_err() {
            return;
        }
        let pipe = Pipe::new(socket, guard);
        let (stage, patience) =
            if pipe.is_trusted() { (Stage::Greeting, GREETING) } else { (Stage::Stranger, PROOF) };
        if matches!(stage, Stage::Stranger) {
            self.entrance.enter(token, now);
        }
        let deadline = now + patience;
        self.deadlines.insert((deadline, token));
        self.guests.insert(token, Guest { pipe, stage, since: now, deadline: Some(deadline) });
        self.ready.insert(token);
    }
}
