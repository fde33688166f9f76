//! The error of a hostfile, and its position.

use thiserror::Error;

/// The reason why a hostfile was refused. Displays as `3:7: reason and remedy`, so that the file's name can
/// stand before it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{line}:{column}: {what}")]
pub struct HostfileError {
    /// The line, counted from 1.
    pub line: usize,
    /// The column, counted in characters from 1. For JSON it is the end of the word in question, where the
    /// reader stood.
    pub column: usize,
    /// The reason and the remedy.
    pub what: String,
}

/// A place in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    line: usize,
    column: usize,
}

impl Position {
    /// The first position of a text.
    pub(super) const START: Position = Position { line: 1, column: 1 };

    /// On a line, both counted from 1.
    pub(super) fn new(line: usize, column: usize) -> Position {
        Position { line: line.max(1), column: column.max(1) }
    }

    /// Returns the position of a byte in a text; bytes beyond its end are at its end.
    pub(super) fn of(text: &str, at: usize) -> Position {
        let at = (0..=at.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        Position::after(&text[..at])
    }

    /// Returns the position of a byte in the line with this number.
    pub(super) fn on_line(number: usize, line: &str, at: usize) -> Position {
        Position { line: number, ..Position::of(line, at) }
    }

    /// Returns the position after this text.
    pub(super) fn after(text: &str) -> Position {
        let line = text.rsplit('\n').next().unwrap_or_default();
        Position { line: text.matches('\n').count() + 1, column: line.chars().count() + 1 }
    }

    /// Something that is wrong here.
    pub(super) fn error(self, what: impl Into<String>) -> HostfileError {
        HostfileError { line: self.line, column: self.column, what: what.into() }
    }
}
