//! Ranks that reach each other along others.

/// Returns the lowest rank that cannot be reached from rank 0 by hops between ranks; none if all can.
pub(super) fn first_unreached(ranks: u32, is_hop: impl Fn(u32, u32) -> bool) -> Option<u32> {
    let mut is_reached = vec![false; ranks as usize];
    let mut open: Vec<u32> = (0..ranks.min(1)).collect();
    while let Some(from) = open.pop() {
        if std::mem::replace(&mut is_reached[from as usize], true) {
            continue;
        }
        open.extend((0..ranks).filter(|to| !is_reached[*to as usize] && is_hop(from, *to)));
    }
    (0..ranks).find(|rank| !is_reached[*rank as usize])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_rank_that_no_way_leads_to_is_found() {
        let of = |ranks, hops: &[(u32, u32)]| {
            first_unreached(ranks, |a, b| hops.contains(&(a, b)) || hops.contains(&(b, a)))
        };
        assert_eq!(of(4, &[(0, 3), (3, 1), (1, 2)]), None);
        assert_eq!(of(5, &[(0, 3), (1, 2), (3, 4)]), Some(1));
        assert_eq!((of(0, &[]), of(1, &[]), of(2, &[])), (None, None, Some(1)));
    }
}
