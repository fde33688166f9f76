//! The ranks' output, line by line, each line preceded by its rank.
//!
//! One thread reads all pipes and writes all lines, so lines of different ranks can't mix. Bytes are passed on as
//! they are. A last line without an end gets one, lest the next rank's line continue it; a line longer than
//! [`LONGEST_LINE`] is passed on in pieces of that size, each a line of its own.

use super::{LaunchError, signals::Signals};
use rustix::{
    event::{PollFd, PollFlags, poll},
    io::{Errno, read, write},
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    process::Child,
    thread,
};

/// More of a line than this is not kept back until its end is seen.
const LONGEST_LINE: usize = 1 << 20;
/// Read at once: what a pipe holds.
const READ_SIZE: usize = 1 << 16;

/// The reader of all ranks' output, before and while it runs.
#[derive(Debug, Default)]
pub(super) struct Tagger {
    streams: Vec<Stream>,
    /// Set while it runs.
    running: Option<Running>,
}

#[derive(Debug)]
struct Running {
    /// Closing it makes the thread pass on what is there, and end.
    stop: OwnedFd,
    /// Is closed by the thread when it ends.
    done: OwnedFd,
}

impl Tagger {
    /// Takes a rank's pipes.
    pub(super) fn add(&mut self, rank: u32, child: &mut Child) -> Result<(), LaunchError> {
        let out = child.stdout.take().map(|pipe| (OwnedFd::from(pipe), Target::Stdout, format!("[{rank}] ")));
        let err =
            child.stderr.take().map(|pipe| (OwnedFd::from(pipe), Target::Stderr, format!("[{rank}:err] ")));
        for (pipe, target, tag) in out.into_iter().chain(err) {
            rustix::io::ioctl_fionbio(&pipe, true).map_err(LaunchError::system("read the ranks' output"))?;
            self.streams.push(Stream { pipe, target, lines: Lines::new(tag.into_bytes()) });
        }
        Ok(())
    }

    /// Starts to pass lines on.
    pub(super) fn start(mut self) -> Result<Tagger, LaunchError> {
        let make_pipe = || {
            let (read, write) = io::pipe().map_err(LaunchError::system("read the ranks' output"))?;
            Ok::<_, LaunchError>((OwnedFd::from(read), OwnedFd::from(write)))
        };
        let (stop_read, stop) = make_pipe()?;
        let (done, done_write) = make_pipe()?;
        let streams = std::mem::take(&mut self.streams);
        thread::Builder::new()
            .name("tag-output".to_owned())
            .spawn(move || {
                let _done = done_write;
                pass_lines_on(streams, &stop_read);
            })
            .map_err(LaunchError::system("start a thread"))?;
        self.running = Some(Running { stop, done });
        Ok(self)
    }

    /// When the ranks are gone: returns when their last words are passed on, or someone is tired of waiting for
    /// whoever reads them.
    pub(super) fn finish(self, signals: &mut Signals) -> Result<(), LaunchError> {
        let Some(Running { stop, done }) = self.running else { return Ok(()) };
        drop(stop);
        loop {
            let impatient = signals.wait(None, Some(done.as_fd()))?;
            let is_done = wait_for(&done, PollFlags::IN, Wait::No);
            if is_done || impatient.iter().any(|signal| [SIGINT, SIGTERM, SIGHUP].contains(signal)) {
                return Ok(());
            }
        }
    }
}

/// One of a rank's pipes.
#[derive(Debug)]
struct Stream {
    pipe: OwnedFd,
    target: Target,
    lines: Lines,
}

#[derive(Clone, Copy, Debug)]
enum Target {
    Stdout,
    Stderr,
}

/// Should a stream be read again?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// When there is more.
    Later,
    /// At once: there may be more.
    Now,
    /// Never: it has ended, or nobody wants it any more.
    Never,
}

impl Stream {
    /// Reads once and passes complete lines on.
    fn advance(&mut self, buffer: &mut [u8], out: &mut Vec<u8>) -> Next {
        out.clear();
        let next = match read(&self.pipe, &mut *buffer) {
            Ok(0) => {
                self.lines.finish(out);
                Next::Never
            }
            Ok(n) => {
                self.lines.push(&buffer[..n], out);
                Next::Now
            }
            Err(Errno::AGAIN | Errno::INTR) => Next::Later,
            Err(_) => Next::Never,
        };
        // A closed pipe behind us is closed for the rank too: it gets SIGPIPE, as it would without us.
        if self.deliver(out).is_err() { Next::Never } else { next }
    }

    fn deliver(&self, bytes: &[u8]) -> rustix::io::Result<()> {
        match self.target {
            Target::Stdout => write_all(io::stdout().as_fd(), bytes),
            Target::Stderr => write_all(io::stderr().as_fd(), bytes),
        }
    }
}

/// The body of the thread.
fn pass_lines_on(mut streams: Vec<Stream>, stop: &OwnedFd) {
    let mut buffer = vec![0; READ_SIZE];
    let mut out = Vec::with_capacity(2 * READ_SIZE);
    while !streams.is_empty() {
        let mut fds: Vec<PollFd<'_>> = streams
            .iter()
            .map(|s| PollFd::new(&s.pipe, PollFlags::IN))
            .chain([PollFd::new(stop, PollFlags::IN)])
            .collect();
        if !matches!(poll(&mut fds, None), Ok(_) | Err(Errno::INTR)) {
            break;
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        if ready[streams.len()] {
            break;
        }
        let mut ready = ready.into_iter();
        streams.retain_mut(|s| ready.next() != Some(true) || s.advance(&mut buffer, &mut out) != Next::Never);
    }
    for mut stream in streams {
        while stream.advance(&mut buffer, &mut out) == Next::Now {}
        out.clear();
        stream.lines.finish(&mut out);
        let _ = stream.deliver(&out);
    }
}

/// How long to wait for a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    No,
    Forever,
}

/// Is there something to read, to write, or the end?
fn wait_for(fd: impl AsFd, flags: PollFlags, wait: Wait) -> bool {
    let timeout = (wait == Wait::No).then(Default::default);
    let mut fds = [PollFd::from_borrowed_fd(fd.as_fd(), flags)];
    matches!(poll(&mut fds, timeout.as_ref()), Ok(n) if n > 0)
}

/// Writes to a descriptor that may have been made non-blocking by whoever we share it with.
fn write_all(fd: BorrowedFd<'_>, mut bytes: &[u8]) -> rustix::io::Result<()> {
    while !bytes.is_empty() {
        match write(fd, bytes) {
            Ok(n) => bytes = &bytes[n..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                wait_for(fd, PollFlags::OUT, Wait::Forever);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Cuts a stream of bytes into lines with a tag.
#[derive(Debug)]
struct Lines {
    tag: Vec<u8>,
    /// The line that has begun and not ended. Shorter than [`LONGEST_LINE`].
    begun: Vec<u8>,
}

impl Lines {
    fn new(tag: Vec<u8>) -> Lines {
        Lines { tag, begun: Vec::new() }
    }

    /// Takes more bytes; appends the lines they complete to `out`.
    fn push(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.begun.extend_from_slice(piece);
            if piece.ends_with(b"\n") || self.begun.len() >= LONGEST_LINE {
                self.finish(out);
            }
        }
    }

    /// Ends the line that has begun.
    fn finish(&mut self, out: &mut Vec<u8>) {
        if self.begun.is_empty() {
            return;
        }
        out.extend_from_slice(&self.tag);
        out.append(&mut self.begun);
        if !out.ends_with(b"\n") {
            out.push(b'\n');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tagged(pieces: &[&[u8]]) -> Vec<u8> {
        let (mut lines, mut out) = (Lines::new(b"[1] ".to_vec()), Vec::new());
        for piece in pieces {
            lines.push(piece, &mut out);
        }
        lines.finish(&mut out);
        out
    }

    #[test]
    fn lines_are_put_together_from_pieces() {
        assert_eq!(tagged(&[b"a", b"b\nc", b"\n"]), b"[1] ab\n[1] c\n");
        assert_eq!(tagged(&[b"\n\nx\n"]), b"[1] \n[1] \n[1] x\n");
        assert_eq!(tagged(&[]), b"");
    }

    #[test]
    fn the_last_line_is_kept_and_ended() {
        assert_eq!(tagged(&[b"a\nlast"]), b"[1] a\n[1] last\n");
    }

    #[test]
    fn bytes_that_are_no_text_pass() {
        assert_eq!(tagged(&[b"\0\xff\xfe\n"]), b"[1] \0\xff\xfe\n");
    }

    #[test]
    fn an_endless_line_is_passed_on_in_pieces() {
        let piece = vec![b'x'; LONGEST_LINE];
        let out = tagged(&[&piece, b"y"]);
        assert_eq!(out.len(), LONGEST_LINE + 5 + 6);
        assert!(out.ends_with(b"x\n[1] y\n"));
    }
}
