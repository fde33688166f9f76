//! Errors in fabric files, with their positions.

use std::{
    fmt, io,
    ops::Range,
    path::{Path, PathBuf},
};

/// An error in a fabric file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FabricError {
    /// Path of the file.
    pub path: PathBuf,
    /// Line and column, counted from 1; `None` if the file can't be read.
    pub position: Option<(usize, usize)>,
    /// The fault, and what would be valid.
    pub message: String,
}

/// An error at a byte range of the text.
pub(super) struct SpannedError {
    pub(super) span: Range<usize>,
    pub(super) message: String,
}

impl SpannedError {
    pub(super) fn new(span: Range<usize>, message: impl Into<String>) -> SpannedError {
        SpannedError { span, message: message.into() }
    }
}

impl FabricError {
    pub(super) fn unreadable(path: &Path, error: &io::Error) -> FabricError {
        FabricError { path: path.to_owned(), position: None, message: format!("can't be read: {error}") }
    }

    pub(super) fn at(path: &Path, text: &str, error: SpannedError) -> FabricError {
        let before = text.get(..error.span.start).unwrap_or(text);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        FabricError { path: path.to_owned(), position: Some((line, column)), message: error.message }
    }
}

impl fmt::Display for FabricError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        if let Some((line, column)) = self.position {
            write!(f, ":{line}:{column}")?;
        }
        write!(f, ": {}", self.message)
    }
}

impl std::error::Error for FabricError {}
