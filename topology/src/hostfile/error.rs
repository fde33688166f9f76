//! What is wrong with a hostfile, and where.

use thiserror::Error;

/// Why a hostfile was refused. Reads `3:7: what, and what helps`, so that the file's name can stand before it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{line}:{column}: {what}")]
pub struct HostfileError {
    /// The line, counted from 1.
    pub line: usize,
    /// The column, counted in characters from 1. For JSON it is where the reader stood when it saw what was wrong: at
    /// the end of the word in question.
    pub column: usize,
    /// What is wrong, and the remedy.
    pub what: String,
}

/// A place in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    line: usize,
    column: usize,
}

impl Position {
    /// Where every text begins.
    pub(super) const START: Position = Position { line: 1, column: 1 };

    /// On a line, both counted from 1.
    pub(super) fn new(line: usize, column: usize) -> Position {
        Position { line: line.max(1), column: column.max(1) }
    }

    /// Of a byte in a text. Beyond its end is at its end.
    pub(super) fn of(text: &str, at: usize) -> Position {
        let at = (0..=at.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        Position::after(&text[..at])
    }

    /// Of a byte in a line with this number.
    pub(super) fn on_line(number: usize, line: &str, at: usize) -> Position {
        Position { line: number, ..Position::of(line, at) }
    }

    /// Of what follows this text.
    pub(super) fn after(text: &str) -> Position {
        let line = text.rsplit('\n').next().unwrap_or_default();
        Position { line: text.matches('\n').count() + 1, column: line.chars().count() + 1 }
    }

    /// Something that is wrong here.
    pub(super) fn error(self, what: impl Into<String>) -> HostfileError {
        HostfileError { line: self.line, column: self.column, what: what.into() }
    }
}
