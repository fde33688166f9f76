//! What is wrong with a fabric file, and where.

use std::{
    fmt, io,
    ops::Range,
    path::{Path, PathBuf},
};

/// A fabric file that can't be used: one line that says where and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FabricError {
    /// The file.
    pub path: PathBuf,
    /// Line and column, both from 1; none when the file can't be read at all.
    pub position: Option<(usize, usize)>,
    /// What is wrong, and what would be valid.
    pub message: String,
}

/// What is wrong with a range of bytes of the text.
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
