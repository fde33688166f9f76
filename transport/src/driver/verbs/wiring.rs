//! Selection of the devices that form the rails between each pair of ranks.
//!
//! The user gives the rails in a device matrix, or the ranks detect them: every rank tries which of its
//! devices reach which devices of its peers. Both ends then select the same pairs from the results of both.
//!
//! All functions are pure: both ends compute the same result from the same messages.

use super::{
    checksum::checksum,
    descriptions::{Devices, Reach},
};
use crate::TransportError;

/// Maximum number of rails between two ranks.
pub(super) const MAX_RAILS: usize = 8;

/// Pair of devices that forms a rail between this rank and a peer: the device index at each end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DevicePair {
    pub(super) ours: usize,
    pub(super) theirs: usize,
}

/// Device names that the user has given: by rank, by peer, in the order of the rails.
pub type Matrix = Vec<Vec<Vec<String>>>;

/// Returns a checksum of a matrix, by which ranks compare their matrices.
pub(super) fn digest(matrix: &Matrix) -> u32 {
    checksum(&serde_json::to_vec(matrix).expect("text is valid JSON"))
}

/// Checks that all ranks have the same matrix, or none.
pub(super) fn check_matrices(reach: &[Reach]) -> Result<(), TransportError> {
    let Some(different) = reach.iter().position(|other| other.matrix != reach[0].matrix) else {
        return Ok(());
    };
    let what = match (reach[0].matrix, reach[different].matrix) {
        (Some(_), None) => "it has no device matrix, and rank 0 has one",
        (None, Some(_)) => "it has a device matrix, and rank 0 has none",
        _ => "its device matrix differs from that of rank 0",
    };
    let what = format!("{what}; give all ranks the same TBCCL_IBV_DEVICES");
    Err(TransportError::Wiring { rank: different as u32, what })
}

/// Checks that the pairs of every rank's message name ranks and devices that exist.
pub(super) fn check_pairs(reach: &[Reach], devices: &[Devices]) -> Result<(), TransportError> {
    let has = |rank: u32, index: usize| {
        devices.get(rank as usize).is_some_and(|devices| index < devices.devices.len())
    };
    for (rank, message) in (0..).zip(reach) {
        let unknown =
            message.pairs.iter().find(|(peer, ours, theirs)| !has(rank, *ours) || !has(*peer, *theirs));
        if let Some((peer, ours, theirs)) = unknown {
            let what = format!(
                "it reaches device {theirs} of rank {peer} from its device {ours}, and one of these does not \
                 exist"
            );
            return Err(TransportError::DeviceDescription { peer: rank, what });
        }
    }
    Ok(())
}

/// Returns whether any cable connects two ranks. All ranks compute the same result from the same messages.
pub(super) fn connects(a: u32, b: u32, matrix: Option<&Matrix>, reach: &[Reach]) -> bool {
    match matrix {
        Some(matrix) => !matrix[a as usize][b as usize].is_empty(),
        None => !detected_cables(a, b, reach).is_empty(),
    }
}

/// Returns the cables to a peer that both ends have detected, in an order that both ends agree on.
///
/// A device is used at most once. Cables between devices that are near the cores of both ranks come first,
/// those with a far device at both ends last. Where that order leaves fewer cables than that of the devices,
/// none is given up for it.
pub(super) fn detected_cables(us: u32, peer: u32, reach: &[Reach]) -> Vec<DevicePair> {
    let (low, high) = (us.min(peer), us.max(peer));
    let reaches = |from: u32, to: u32, ours: usize, theirs: usize| {
        reach[from as usize].pairs.contains(&(to, ours, theirs))
    };
    let mut candidates: Vec<(usize, usize)> = reach[low as usize]
        .pairs
        .iter()
        .filter(|(to, a, b)| *to == high && reaches(high, low, *b, *a))
        .map(|(_, a, b)| (*a, *b))
        .collect();
    let is_far = |rank: u32, device: &usize| reach[rank as usize].far.contains(device);
    let far_ends = |(a, b): &(usize, usize)| u32::from(is_far(low, a)) + u32::from(is_far(high, b));
    candidates.sort_unstable();
    let by_device = of_distinct_devices(&candidates);
    candidates.sort_by_key(far_ends);
    let near_first = of_distinct_devices(&candidates);
    let mut chosen = if near_first.len() < by_device.len() { by_device } else { near_first };
    chosen.sort_by_key(far_ends);
    let cable = |(a, b)| {
        if us == low { DevicePair { ours: a, theirs: b } } else { DevicePair { ours: b, theirs: a } }
    };
    chosen.into_iter().map(cable).collect()
}

/// Returns the first pairs, each of devices that no earlier one has.
fn of_distinct_devices(pairs: &[(usize, usize)]) -> Vec<(usize, usize)> {
    let mut chosen: Vec<(usize, usize)> = Vec::new();
    for (a, b) in pairs.iter().copied() {
        if chosen.len() < MAX_RAILS && chosen.iter().all(|(x, y)| *x != a && *y != b) {
            chosen.push((a, b));
        }
    }
    chosen
}

/// Returns the cables to a peer that the matrix names.
pub(super) fn matrix_cables(
    us: u32,
    peer: u32,
    matrix: &Matrix,
    devices: &[Devices],
) -> Result<Vec<DevicePair>, TransportError> {
    let index = |rank: u32, name: &str| {
        devices[rank as usize].devices.iter().position(|device| device.name == name).ok_or_else(|| {
            let names: Vec<&str> = devices[rank as usize].devices.iter().map(|d| d.name.as_str()).collect();
            TransportError::Wiring {
                rank,
                what: format!(
                    "the device matrix names `{name}`, which it does not have or whose port is down; it \
                     has: {}",
                    names.join(", ")
                ),
            }
        })
    };
    let cell = |from: u32, to: u32| &matrix[from as usize][to as usize];
    let rails = cell(us, peer).iter().zip(cell(peer, us)).take(MAX_RAILS);
    rails
        .map(|(ours, theirs)| Ok(DevicePair { ours: index(us, ours)?, theirs: index(peer, theirs)? }))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{super::descriptions::Device, *};

    fn reach(pairs: &[(u32, usize, usize)]) -> Reach {
        Reach { pairs: pairs.to_vec(), ..Reach::default() }
    }

    #[test]
    fn a_pair_of_devices_that_do_not_exist_is_an_error_that_names_the_rank() {
        let devices = |count: usize| Devices {
            host: "h".into(),
            awaits_address: false,
            devices: (0..count)
                .map(|number| Device {
                    name: format!("d{number}"),
                    gid: String::new(),
                    lid: 0,
                    mtu: 5,
                    reliable: true,
                    one_sided: true,
                    max_message_bytes: 1 << 20,
                    frame_depth: None,
                    queue_pairs: 100,
                })
                .collect(),
        };
        let devices = [devices(1), devices(2)];
        let check = |pair| check_pairs(&[reach(&[(1, 0, 1)]), reach(&[(0, 1, 0), pair])], &devices);
        check((0, 0, 0)).expect("both exist");
        for pair in [(0, 2, 0), (0, 0, 1), (2, 0, 0), (u32::MAX, 0, 0), (0, usize::MAX, 0)] {
            let error = check(pair).expect_err("one of them does not exist");
            assert!(matches!(error, TransportError::DeviceDescription { peer: 1, .. }), "{error}");
            let text = error.to_string();
            assert!(text.contains(&format!("device {} of rank {}", pair.2, pair.0)), "{text}");
        }
    }

    #[test]
    fn both_ends_choose_the_same_cables() {
        // Rank 0 has devices 0 and 1; rank 1 has devices 0, 1 and 2. Cables connect 0-2 and 1-0.
        let messages = [reach(&[(1, 1, 0), (1, 0, 2)]), reach(&[(0, 2, 0), (0, 0, 1), (0, 1, 1)])];
        let ours = detected_cables(0, 1, &messages);
        let theirs = detected_cables(1, 0, &messages);
        assert_eq!(ours, [DevicePair { ours: 0, theirs: 2 }, DevicePair { ours: 1, theirs: 0 }]);
        assert_eq!(theirs, [DevicePair { ours: 2, theirs: 0 }, DevicePair { ours: 0, theirs: 1 }]);
    }

    #[test]
    fn on_a_switch_every_device_is_used_once() {
        let all = |to| reach(&[(to, 0, 0), (to, 0, 1), (to, 1, 0), (to, 1, 1)]);
        let cables = detected_cables(0, 1, &[all(1), all(0)]);
        assert_eq!(cables, [DevicePair { ours: 0, theirs: 0 }, DevicePair { ours: 1, theirs: 1 }]);
        assert!(detected_cables(0, 1, &[reach(&[]), all(0)]).is_empty());
    }

    #[test]
    fn on_a_switch_devices_near_the_cores_of_both_ranks_come_first() {
        let far = |reach: Reach, far: &[usize]| Reach { far: far.to_vec(), ..reach };
        let pair = |ours, theirs| DevicePair { ours, theirs };
        let all = |to| reach(&[(to, 0, 0), (to, 0, 1), (to, 1, 0), (to, 1, 1)]);
        // Rank 0 is at the node of its device 0, and rank 1 at that of its device 1.
        let messages = [far(all(1), &[1]), far(all(0), &[0])];
        assert_eq!(detected_cables(0, 1, &messages), [pair(0, 1), pair(1, 0)]);
        assert_eq!(detected_cables(1, 0, &messages), [pair(1, 0), pair(0, 1)]);
        // Both are at the node of their device 1.
        let messages = [far(all(1), &[0]), far(all(0), &[0])];
        assert_eq!(detected_cables(0, 1, &messages), [pair(1, 1), pair(0, 0)]);
    }

    #[test]
    fn a_far_device_is_used_where_it_has_the_only_cable_and_no_cable_is_given_up_for_a_near_one() {
        let far = |reach: Reach, far: &[usize]| Reach { far: far.to_vec(), ..reach };
        let pair = |ours, theirs| DevicePair { ours, theirs };
        let only = [far(reach(&[(1, 0, 0)]), &[0]), far(reach(&[(0, 0, 0)]), &[0])];
        assert_eq!(detected_cables(0, 1, &only), [pair(0, 0)]);
        // The near devices 0 and 1 reach each other, and each reaches one more. Taking that pair first would
        // leave the others without a partner.
        let messages = [
            far(reach(&[(1, 0, 0), (1, 0, 1), (1, 1, 1)]), &[1]),
            far(reach(&[(0, 0, 0), (0, 1, 0), (0, 1, 1)]), &[0]),
        ];
        assert_eq!(detected_cables(0, 1, &messages).len(), 2);
        assert_eq!(detected_cables(1, 0, &messages).len(), 2);
    }

    #[test]
    fn all_ranks_know_which_pairs_have_cables() {
        // Cables connect ranks 0-1 and 1-2. Rank 0 reports that it reaches rank 2, which does not report the
        // reverse.
        let messages = [reach(&[(1, 0, 0), (2, 0, 0)]), reach(&[(0, 0, 0), (2, 1, 0)]), reach(&[(1, 0, 1)])];
        for (a, b, expected) in [(0, 1, true), (1, 2, true), (0, 2, false)] {
            assert_eq!(connects(a, b, None, &messages), expected, "{a} {b}");
            assert_eq!(connects(b, a, None, &messages), expected, "{b} {a}");
        }
        let cell = |name: &str| vec![name.to_owned()];
        let matrix = vec![vec![vec![], cell("x"), vec![]], vec![cell("y"), vec![], vec![]], vec![vec![]; 3]];
        assert!(connects(0, 1, Some(&matrix), &[]) && !connects(0, 2, Some(&matrix), &[]));
    }

    #[test]
    fn ranks_with_different_matrices_are_told_so() {
        let message = |matrix| Reach { matrix, ..Reach::default() };
        check_matrices(&[message(None), message(None)]).expect("equal");
        check_matrices(&[message(Some(1)), message(Some(1))]).expect("equal");
        for (first, second, expected_text) in
            [(Some(1), None, "no device matrix"), (None, Some(1), "has none"), (Some(1), Some(2), "differs")]
        {
            let error = check_matrices(&[message(first), message(first), message(second)])
                .expect_err("not equal")
                .to_string();
            assert!(error.starts_with("rank 2: ") && error.contains(expected_text), "{error}");
        }
        let one = vec![vec![vec!["a".to_owned()]]];
        assert_ne!(digest(&one), digest(&vec![vec![vec!["b".to_owned()]]]));
    }

    #[test]
    fn a_matrix_names_devices_and_a_wrong_name_is_an_error_with_the_right_ones() {
        let names = |list: &[&str]| Devices {
            host: "h".into(),
            awaits_address: false,
            devices: list
                .iter()
                .map(|name| Device {
                    name: (*name).into(),
                    gid: String::new(),
                    lid: 0,
                    mtu: 3,
                    reliable: false,
                    one_sided: false,
                    max_message_bytes: 0,
                    frame_depth: None,
                    queue_pairs: 10,
                })
                .collect(),
        };
        let devices = [names(&["en2", "en3"]), names(&["en4"])];
        let cell = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
        let matrix = vec![vec![cell(&[]), cell(&["en3"])], vec![cell(&["en4"]), cell(&[])]];
        assert_eq!(
            matrix_cables(0, 1, &matrix, &devices).expect("there"),
            [DevicePair { ours: 1, theirs: 0 }]
        );
        let wrong = vec![vec![cell(&[]), cell(&["en9"])], vec![cell(&["en4"]), cell(&[])]];
        let error = matrix_cables(0, 1, &wrong, &devices).expect_err("no such device").to_string();
        assert!(error.contains("rank 0") && error.contains("en9") && error.contains("en2, en3"), "{error}");
    }
}
