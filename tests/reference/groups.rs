//! Groups of calls, each with the same result as the single call.

use tbccl::{Communicator, Result};
use tbccl_cli::reference::{Call, Case, Kind, Way, exchange_of, mix};

/// Number of groups for each number of ranks.
const GROUPS: usize = 64;

/// Maximum number of calls of a group.
const CALLS: u64 = 7;

/// Mostly small counts, so that sums are fused; some that are split.
const COUNTS: [usize; 6] = [0, 1, 5, 64, 129, 1031];

/// Returns the calls of a group, the same on all ranks. They include messages, on a single rank to itself.
fn cases(ranks: u32, group: usize) -> Vec<Case> {
    let seed = mix(u64::from(ranks) << 40, group);
    let calls = Call::all();
    let mut cases: Vec<Case> = Vec::new();
    for at in 0..=(seed >> 7) % CALLS {
        let seed = mix(seed, at as usize);
        let pick = |shift: u32, among: usize| (seed >> shift) as usize % among;
        let kind = match cases.last() {
            // Produces consecutive sums.
            Some(last) if pick(3, 3) == 0 => last.kind,
            _ => {
                let call = calls[pick(9, calls.len())];
                let (dtype, op) = call.pairs()[pick(17, call.pairs().len())];
                let in_place = call.places()[pick(29, call.places().len())];
                Kind { call, way: Way::Chosen, in_place, dtype, op }
            }
        };
        cases.push(Case { kind, count: COUNTS[pick(37, COUNTS.len())], seed });
    }
    cases
}

/// Runs groups; returns their number of calls.
pub(crate) fn groups(comm: &mut Communicator) -> Result<usize> {
    let mut number = 0;
    for turn in 0..GROUPS {
        let cases = cases(comm.size(), turn);
        number += cases.len();
        let exchanges: Result<Vec<_>> = cases.into_iter().map(|case| exchange_of(case, comm)).collect();
        let mut exchanges = exchanges?;
        // Messages may be at any position among the others, a different one on each rank.
        let mut group = comm.group();
        exchanges.iter_mut().try_for_each(|exchange| exchange.queue(&mut group))?;
        group.run()?;
        for exchange in &exchanges {
            exchange.check().unwrap_or_else(|wrong| panic!("{wrong}"));
        }
    }
    Ok(number)
}

#[test]
fn all_calls_are_in_some_group() {
    let cases: Vec<Case> =
        (1..=9).flat_map(|ranks| (0..GROUPS).flat_map(move |group| cases(ranks, group))).collect();
    for call in Call::all() {
        for in_place in call.places() {
            let found = cases.iter().filter(|case| (case.kind.call, case.kind.in_place) == (call, *in_place));
            assert!(found.count() > 9, "{call:?}, in place: {in_place}");
        }
    }
}
