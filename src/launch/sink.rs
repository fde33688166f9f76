//! Destination of the ranks' lines: stdout and stderr, or one file for each stream of each rank.
//!
//! All readers push into one sink behind a lock, so lines of different ranks do not mix. A failed write is
//! reported once and ends the job.

use super::{LaunchError, Output, frame::Stream, lines::Lines};
use rustix::{
    event::{PollFd, PollFlags, poll},
    io::{Errno, write},
};
use std::{
    collections::HashMap,
    fs::File,
    io,
    os::fd::{AsFd, BorrowedFd},
    path::{Path, PathBuf},
};

/// The destinations, and the incomplete line of each stream.
#[derive(Debug)]
pub(super) struct Sink {
    output: Output,
    /// Number of ranks of the job.
    ranks: u32,
    lines: HashMap<(u32, Stream), Lines>,
    /// The file of each stream; empty when lines go to stdout and stderr.
    files: HashMap<(u32, Stream), (PathBuf, File)>,
    /// Whether a write has failed. Later output is discarded.
    broken: bool,
}

/// Reason why lines can't be written.
#[derive(Debug)]
pub(super) enum OutputError {
    /// The reader of stdout or stderr has closed it.
    ReaderGone,
    /// The write failed; the message in one line.
    Failed(String),
}

impl Sink {
    /// Opens the sink of a job with `ranks` ranks, and creates the files.
    pub(super) fn open(output: &Output, ranks: u32) -> Result<Sink, LaunchError> {
        let mut files = HashMap::new();
        if let Output::Files { folder, .. } = output {
            let refused = |path: &Path, source| LaunchError::Output { path: path.to_owned(), source };
            std::fs::create_dir_all(folder).map_err(|e| refused(folder, e))?;
            for rank in 0..ranks {
                for (stream, name) in [(Stream::Stdout, "out"), (Stream::Stderr, "err")] {
                    let path = folder.join(format!("rank.{rank}.{name}"));
                    let file = File::create(&path).map_err(|e| refused(&path, e))?;
                    files.insert((rank, stream), (path, file));
                }
            }
        }
        Ok(Sink { output: output.clone(), ranks, lines: HashMap::new(), files, broken: false })
    }

    /// Returns whether the job has a rank, of which output is accepted.
    pub(super) fn has_rank(&self, rank: u32) -> bool {
        rank < self.ranks
    }

    /// Accepts output of a rank of the job, and writes its complete lines.
    pub(super) fn push(&mut self, rank: u32, stream: Stream, bytes: &[u8]) -> Result<(), OutputError> {
        let mut out = Vec::with_capacity(bytes.len() + 16);
        let output = &self.output;
        let lines = self.lines.entry((rank, stream)).or_insert_with(|| new_lines(output, rank, stream));
        lines.push(bytes, &mut out);
        self.deliver(rank, stream, &out)
    }

    /// Writes the incomplete lines.
    pub(super) fn finish(&mut self) -> Result<(), OutputError> {
        let mut partial: Vec<_> = self.lines.drain().collect();
        partial.sort_by_key(|((rank, stream), _)| (*rank, *stream == Stream::Stderr));
        for ((rank, stream), mut lines) in partial {
            let mut out = Vec::new();
            lines.finish(&mut out);
            self.deliver(rank, stream, &out)?;
        }
        Ok(())
    }

    fn deliver(&mut self, rank: u32, stream: Stream, bytes: &[u8]) -> Result<(), OutputError> {
        if bytes.is_empty() || self.broken {
            return Ok(());
        }
        let file = self.files.get(&(rank, stream));
        let written = match (file, stream) {
            (Some((_, file)), _) => write_all(file.as_fd(), bytes),
            (None, Stream::Stdout) => write_all(io::stdout().as_fd(), bytes),
            (None, Stream::Stderr) => write_all(io::stderr().as_fd(), bytes),
        };
        let Err(error) = written else { return Ok(()) };
        self.broken = true;
        if error == Errno::PIPE && file.is_none() {
            return Err(OutputError::ReaderGone);
        }
        let destination = match (file, stream) {
            (Some((path, _)), _) => path.display().to_string(),
            (None, Stream::Stdout) => "stdout".to_owned(),
            (None, Stream::Stderr) => "stderr".to_owned(),
        };
        Err(OutputError::Failed(format!(
            "can't write the output of rank {rank} to {destination}: {error}{}",
            super::error::write_remedy(error)
        )))
    }
}

fn new_lines(output: &Output, rank: u32, stream: Stream) -> Lines {
    let (tagged, stamped) = match output {
        Output::Lines { tagged, stamped } => (*tagged, *stamped),
        Output::Files { stamped, .. } => (false, *stamped),
        // The ranks write themselves.
        Output::Inherited => (false, false),
    };
    let tag = match (tagged, stream) {
        (false, _) => String::new(),
        (true, Stream::Stdout) => format!("[{rank}] "),
        (true, Stream::Stderr) => format!("[{rank}:err] "),
    };
    Lines::new(tag.into_bytes(), stamped)
}

/// Writes all bytes, even to a descriptor that another process has made non-blocking.
fn write_all(fd: BorrowedFd<'_>, mut bytes: &[u8]) -> rustix::io::Result<()> {
    while !bytes.is_empty() {
        match write(fd, bytes) {
            Ok(n) => bytes = &bytes[n..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                let _ = poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::OUT)], None);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stream_of_each_rank_has_its_file() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let output = Output::Files { folder: folder.path().join("new/one"), stamped: false };
        let mut sink = Sink::open(&output, 2).expect("a folder");
        for (rank, stream, text) in
            [(0, Stream::Stdout, "a"), (1, Stream::Stderr, "b\nc"), (0, Stream::Stdout, "d\n")]
        {
            sink.push(rank, stream, text.as_bytes()).expect("written");
        }
        sink.finish().expect("written");
        let read = |name| std::fs::read_to_string(folder.path().join("new/one").join(name)).expect("a file");
        assert_eq!([read("rank.0.out"), read("rank.1.err"), read("rank.1.out")], ["ad\n", "b\nc\n", ""]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_is_told_once_with_the_file_and_the_remedy() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::os::unix::fs::symlink("/dev/full", folder.path().join("rank.0.out")).expect("a link");
        let output = Output::Files { folder: folder.path().to_owned(), stamped: false };
        let mut sink = Sink::open(&output, 1).expect("a folder");
        let Err(OutputError::Failed(told)) = sink.push(0, Stream::Stdout, b"x\n") else { panic!("written") };
        assert!(told.contains("rank.0.out: No space left") && told.contains("make room there"), "{told}");
        assert!(sink.push(0, Stream::Stdout, b"x\n").is_ok(), "told once");
    }

    #[test]
    fn a_folder_that_can_not_be_made_is_an_error_with_its_name() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        let output = Output::Files { folder: file.path().join("x"), stamped: false };
        let error = Sink::open(&output, 1).expect_err("a file is no folder").to_string();
        assert!(error.contains(&*file.path().to_string_lossy()) && error.contains("--output"), "{error}");
    }
}
