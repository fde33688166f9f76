//! Words of reports: times, lists of names, and numbers of calls.

/// Number of ranks that a sentence names.
pub(super) const NAMED: usize = 6;

/// Returns a time for people: `8.2 s`.
pub(super) fn seconds(time: f64) -> String {
    if time >= 100.0 { format!("{time:.0} s") } else { format!("{time:.1} s") }
}

/// Joins names: `a, b and c`.
pub(super) fn list(names: &[String]) -> String {
    let shown = &names[..names.len().min(NAMED)];
    match (shown, names.len() - shown.len()) {
        ([], _) => String::new(),
        ([one], 0) => one.clone(),
        ([first @ .., last], 0) => format!("{} and {last}", first.join(", ")),
        (shown, more) => format!("{} and {more} more", shown.join(", ")),
    }
}

/// Puts the number of a call, if it has one, behind its verb.
pub(super) fn numbered(name: &str, number: Option<u64>) -> String {
    let number = number.map(|number| format!(" number {number}")).unwrap_or_default();
    match name.split_once(' ') {
        Some((verb, rest)) => format!("{verb}{number} {rest}"),
        None => format!("{name}{number}"),
    }
}
