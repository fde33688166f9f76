//! Splitting of byte streams into tagged lines.
//!
//! Bytes are forwarded unchanged. A last line without a newline gets one, so that another rank's line does
//! not continue it. A line longer than [`MAX_LINE_BYTES`] is forwarded in pieces of that size, each a line of
//! its own.

use std::time::SystemTime;

/// Maximum bytes of a line that are buffered before its end is seen.
const MAX_LINE_BYTES: usize = 1 << 20;

/// Splits a byte stream into tagged lines.
#[derive(Debug)]
pub(super) struct Lines {
    tag: Vec<u8>,
    /// Whether the time precedes the tag.
    stamped: bool,
    /// The incomplete line; shorter than [`MAX_LINE_BYTES`].
    partial: Vec<u8>,
}

impl Lines {
    /// Creates a splitter that prefixes each line with `tag`, and with the time it ended if `stamped`.
    pub(super) fn new(tag: Vec<u8>, stamped: bool) -> Lines {
        Lines { tag, stamped, partial: Vec::new() }
    }

    /// Takes more bytes; appends the lines they complete to `out`.
    pub(super) fn push(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.partial.extend_from_slice(piece);
            if piece.ends_with(b"\n") || self.partial.len() >= MAX_LINE_BYTES {
                self.finish(out);
            }
        }
    }

    /// Terminates the incomplete line.
    pub(super) fn finish(&mut self, out: &mut Vec<u8>) {
        if self.partial.is_empty() {
            return;
        }
        if self.stamped {
            out.extend_from_slice(humantime::format_rfc3339_millis(SystemTime::now()).to_string().as_bytes());
            out.push(b' ');
        }
        out.extend_from_slice(&self.tag);
        out.append(&mut self.partial);
        if !out.ends_with(b"\n") {
            out.push(b'\n');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tagged(pieces: &[&[u8]]) -> Vec<u8> {
        let (mut lines, mut out) = (Lines::new(b"[1] ".to_vec(), false), Vec::new());
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
        let piece = vec![b'x'; MAX_LINE_BYTES];
        let out = tagged(&[&piece, b"y"]);
        assert_eq!(out.len(), MAX_LINE_BYTES + 5 + 6);
        assert!(out.ends_with(b"x\n[1] y\n"));
    }

    #[test]
    fn the_time_stands_before_the_tag() {
        let (mut lines, mut out) = (Lines::new(b"[1] ".to_vec(), true), Vec::new());
        lines.push(b"x\n", &mut out);
        let line = String::from_utf8(out).expect("text");
        let (time, rest) = line.split_once(' ').expect("two parts");
        assert!(humantime::parse_rfc3339(time).is_ok(), "{line}");
        assert_eq!(rest, "[1] x\n");
    }
}
