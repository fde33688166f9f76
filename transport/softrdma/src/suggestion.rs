//! Suggestions for misspelled names.

/// Returns `, did you mean `x`?` if a valid name is similar to `given`, and then a list of all valid names.
pub(crate) fn suggest<'a>(given: &str, valid: impl IntoIterator<Item = &'a str>) -> String {
    let valid: Vec<&str> = valid.into_iter().collect();
    let lower = given.to_lowercase();
    let nearest = valid
        .iter()
        .map(|name| (strsim::jaro_winkler(&lower, &name.to_lowercase()), *name))
        .filter(|(likeness, _)| *likeness > 0.7)
        .max_by(|a, b| a.0.total_cmp(&b.0));
    let suggestion = nearest.map(|(_, name)| format!(", did you mean `{name}`?")).unwrap_or_default();
    match valid.as_slice() {
        [] => "; there are none".to_owned(),
        valid => format!("{suggestion}; known: {}", valid.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_offered_before_all() {
        assert_eq!(suggest("usb", ["ib", "usb4"]), ", did you mean `usb4`?; known: ib, usb4");
        assert_eq!(suggest("xyz", ["ib", "usb4"]), "; known: ib, usb4");
        assert_eq!(suggest("xyz", []), "; there are none");
    }
}
