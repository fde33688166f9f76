//! Names that people type: parsing with a suggestion when it fails.

use thiserror::Error;

/// The error for an unknown name, with the nearest valid name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("unknown {kind} `{given}`{}; known: {}", suggestion(nearest), known.join(", "))]
pub struct UnknownName {
    /// The kind of name, e.g. `element type`.
    pub kind: &'static str,
    /// The unknown name.
    pub given: String,
    /// The valid name that is most similar, if one is similar enough.
    pub nearest: Option<&'static str>,
    /// All valid names.
    pub known: Vec<&'static str>,
}

fn suggestion(nearest: &Option<&'static str>) -> String {
    nearest.map(|name| format!(", did you mean `{name}`?")).unwrap_or_default()
}

impl UnknownName {
    /// Builds the error for `given` among the valid names.
    pub fn new(
        kind: &'static str,
        given: &str,
        known: impl IntoIterator<Item = &'static str>,
    ) -> UnknownName {
        let known: Vec<&'static str> = known.into_iter().collect();
        let lower = given.to_lowercase();
        let nearest = known
            .iter()
            .map(|name| (strsim::jaro_winkler(&lower, &name.to_lowercase()), *name))
            .filter(|(likeness, _)| *likeness > 0.7)
            .max_by(|a, b| a.0.total_cmp(&b.0))
            .map(|(_, name)| name);
        UnknownName { kind, given: given.to_owned(), nearest, known }
    }
}
