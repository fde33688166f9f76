//! Choice of the cases to run; see the module documentation of the program.

use crate::case::{LONG, counts, product};
use std::{
    collections::HashSet,
    hash::{Hash, Hasher},
};
use tbccl_cli::reference::{Case, Kind, Way, mix};

/// Numbers of ranks.
pub(crate) const RANKS: std::ops::RangeInclusive<u32> = 1..=9;

/// One of this many remaining cases runs; `LONG_SAMPLE` is the number for long ones.
const SAMPLE: u64 = 1024;
const LONG_SAMPLE: u64 = 8192;

/// One of this many choices of a count is the longest count.
const LONG_CHOICES: u64 = 32;

/// Environment variable that selects all cases.
pub(crate) const EVERYTHING: &str = "TBCCL_TEST_EVERYTHING";

/// Environment variable with a single number of ranks to test, to divide the time of all cases.
const RANKS_ALONE: &str = "TBCCL_TEST_RANKS";

/// Returns the numbers of ranks to test.
pub(crate) fn ranks() -> impl Iterator<Item = u32> {
    let only = std::env::var(RANKS_ALONE).ok().map(|ranks| ranks.parse().expect("a number of ranks"));
    assert!(only.is_none_or(|only| RANKS.contains(&only)), "{RANKS_ALONE} is none of {RANKS:?}");
    RANKS.filter(move |ranks| only.is_none_or(|only| only == *ranks))
}

/// A hasher; fast, since every case of the product is hashed.
struct Mixer(u64);

impl Hasher for Mixer {
    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.0 = mix(self.0, u64::from_le_bytes(word) as usize + 1);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Returns a hash that is the same in every process.
fn hash(of: impl Hash) -> u64 {
    let mut mixer = Mixer(1);
    of.hash(&mut mixer);
    mixer.finish()
}

fn pick<T: Copy>(from: &[T], hash: u64) -> T {
    from[(hash >> 8) as usize % from.len()]
}

fn pick_count(ranks: u32, hash: u64) -> usize {
    let counts = counts(ranks);
    let short = &counts[..counts.len() - 1];
    if hash.is_multiple_of(LONG_CHOICES) { LONG } else { pick(short, hash) }
}

/// Returns the name of the algorithm.
fn name(way: Way) -> &'static str {
    match way {
        Way::Chosen => "",
        Way::By(name, _) => name,
    }
}

fn pick_way(kind: Kind, hash: u64) -> Way {
    match kind.way {
        Way::Chosen => Way::Chosen,
        Way::By(name, _) => Way::By(name, pick(&[1, 3], hash.rotate_left(9))),
    }
}

/// Whether the case represents its algorithm and form with its count on `ranks` ranks. The longest count runs
/// on a third of the numbers of ranks.
fn stands_for_its_count(case: &Case, ranks: u32) -> bool {
    let Case { kind, count, .. } = *case;
    if count == LONG && ranks % 3 != hash((kind.call, name(kind.way), kind.in_place)) as u32 % 3 {
        return false;
    }
    let by = hash((kind.call, name(kind.way), kind.in_place, count, ranks));
    kind.way == pick_way(kind, by) && (kind.dtype, kind.op) == pick(kind.call.pairs(), by)
}

/// Whether the case represents its type and operation on `ranks` ranks, with the library's choice of
/// algorithm.
fn stands_for_its_type(case: &Case, ranks: u32) -> bool {
    let Case { kind, count, .. } = *case;
    if kind.way != Way::Chosen {
        return false;
    }
    let by = hash((kind.call, kind.dtype, kind.op, ranks));
    kind.in_place == pick(kind.call.places(), by) && count == pick_count(ranks, by)
}

/// Whether the case represents its algorithm with its type and operation.
fn stands_for_its_algorithm(case: &Case, ranks: u32) -> bool {
    let Case { kind, count, .. } = *case;
    let by = hash((kind.call, name(kind.way), kind.dtype, kind.op));
    // 2 to 9 ranks, since a single rank sends no messages.
    ranks == 2 + (by % 8) as u32
        && kind.way == pick_way(kind, by)
        && kind.in_place == pick(kind.call.places(), by)
        && count == pick_count(ranks, by)
}

fn is_sampled(case: &Case) -> bool {
    case.seed.is_multiple_of(if case.count == LONG { LONG_SAMPLE } else { SAMPLE })
}

/// Returns the cases that run on `ranks` ranks.
pub(crate) fn chosen(ranks: u32) -> impl Iterator<Item = Case> {
    let everything = std::env::var_os(EVERYTHING).is_some();
    let stands = move |case: &Case| {
        stands_for_its_count(case, ranks)
            || stands_for_its_type(case, ranks)
            || stands_for_its_algorithm(case, ranks)
            || is_sampled(case)
    };
    product(ranks).filter(move |case| everything || stands(case))
}

#[test]
fn what_runs_is_what_the_documentation_says() {
    let (mut by_count, mut by_type, mut by_algorithm) = (HashSet::new(), HashSet::new(), HashSet::new());
    let kind = |case: &Case, ranks| {
        let Case { kind: Kind { call, way, in_place, dtype, op }, count, .. } = *case;
        let by_count = (call, name(way), in_place, count, ranks);
        (by_count, (call, dtype, op, ranks), (call, name(way), dtype, op))
    };
    let mut number = 0;
    for ranks in RANKS {
        for case in chosen(ranks) {
            number += 1;
            let (count, dtype, algorithm) = kind(&case, ranks);
            by_count.insert(count);
            by_algorithm.insert(algorithm);
            if case.kind.way == Way::Chosen {
                by_type.insert(dtype);
            }
        }
    }
    let mut all = 0;
    for ranks in RANKS {
        for case in product(ranks) {
            all += 1;
            let (count, dtype, algorithm) = kind(&case, ranks);
            let (call, name, in_place, elements, _) = count;
            let on = |ranks| by_count.contains(&(call, name, in_place, elements, ranks));
            assert!(
                on(ranks) || elements == LONG && RANKS.filter(|ranks| on(*ranks)).count() > 1,
                "{count:?}"
            );
            assert!(by_type.contains(&dtype), "{dtype:?}");
            assert!(by_algorithm.contains(&algorithm), "{algorithm:?}");
        }
    }
    eprintln!("{number} of {all} cases");
    assert!(number > 15_000 && all > 800_000, "{number} of {all}");
}
