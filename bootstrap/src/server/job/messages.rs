//! Error messages about ranks.

use std::collections::BTreeMap;

/// Maximum length of a text that is taken over from a rank, in bytes.
const MAX_MESSAGE_BYTES: usize = 2000;

/// Makes a text from a rank fit for display: one line of bounded length.
pub(super) fn sanitize(text: &str) -> String {
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    line.char_indices().take_while(|(at, c)| at + c.len_utf8() <= MAX_MESSAGE_BYTES).map(|(_, c)| c).collect()
}

/// Returns a sentence about the first option that two ranks set differently.
pub(super) fn option_mismatch(
    first: u32,
    ours: &BTreeMap<String, String>,
    rank: u32,
    theirs: &BTreeMap<String, String>,
) -> Option<String> {
    let keys = ours.keys().chain(theirs.keys());
    let mut different = keys.filter(|key| ours.get(*key) != theirs.get(*key));
    let show = |value: Option<&String>| value.map_or_else(|| "unknown".to_owned(), |v| format!("`{v}`"));
    different.next().map(|key| {
        sanitize(&format!(
            "{key} must be equal on all ranks: it is {} on rank {first} and {} on rank {rank}",
            show(ours.get(key)),
            show(theirs.get(key))
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_rank_says_is_one_line_and_not_endless() {
        assert_eq!(sanitize("no\ncable\x1b[2J"), "no cable [2J");
        let long = sanitize(&"\u{20ac}".repeat(5000));
        assert!(long.len() <= MAX_MESSAGE_BYTES && long.len() > MAX_MESSAGE_BYTES - 3);
    }

    #[test]
    fn an_option_that_only_one_knows_is_a_difference() {
        let ours = BTreeMap::from([("A".to_owned(), "1".to_owned())]);
        let theirs = BTreeMap::from([("A".to_owned(), "1".to_owned()), ("B".to_owned(), "2".to_owned())]);
        assert_eq!(option_mismatch(0, &ours, 1, &ours), None);
        let why = option_mismatch(4, &ours, 7, &theirs).expect("B");
        assert_eq!(why, "B must be equal on all ranks: it is unknown on rank 4 and `2` on rank 7");
    }
}
