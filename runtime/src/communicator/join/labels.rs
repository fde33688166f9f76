//! Labels of the ranks of a communicator that was made from another one.

use topology::Rank;

/// Returns the labels of the ranks of a new communicator for people, by rank.
pub(super) fn labels(members: &[Rank]) -> Vec<String> {
    let label = |(new, old): (u32, &Rank)| match old.0 {
        old if old == new => new.to_string(),
        old => format!("{new} ({old} before)"),
    };
    (0..).zip(members).map(label).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_that_change_their_number_are_known_by_both() {
        assert_eq!(labels(&[0, 2, 3].map(Rank)), ["0", "1 (2 before)", "2 (3 before)"]);
    }
}
