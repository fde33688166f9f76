//! Groups of calls, each with the same result as the single call.

use crate::{
    case::{Call, Case, Kind, Way, mix},
    definition::Sample,
    exchange::{Exchange, exact},
    work::with_element,
};
use half::{bf16, f16};
use num_complex::Complex32;
use tbccl::{Communicator, DType, Group, Result};

/// Number of groups for each number of ranks.
const GROUPS: usize = 64;

/// Maximum number of calls of a group.
const CALLS: u64 = 7;

/// Mostly small counts, so that sums are fused; some that are split.
const COUNTS: [usize; 6] = [0, 1, 5, 64, 129, 1031];

/// A call of a group, of any element type.
trait Queueing {
    fn queue<'m>(&'m mut self, group: &mut Group<'_, 'm>) -> Result<()>;
    fn check(&self);
}

impl<T: Sample> Queueing for Exchange<T> {
    fn queue<'m>(&'m mut self, group: &mut Group<'_, 'm>) -> Result<()> {
        Exchange::queue(self, group)
    }

    fn check(&self) {
        Exchange::check(self);
    }
}

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

fn exchange(case: Case, comm: &Communicator) -> Box<dyn Queueing> {
    with_element!(case.kind.dtype, T => Box::new(Exchange::<T>::new(case, exact(), comm)))
}

/// Runs groups; returns their number of calls.
pub(crate) fn groups(comm: &mut Communicator) -> Result<usize> {
    let mut number = 0;
    for turn in 0..GROUPS {
        let cases = cases(comm.size(), turn);
        number += cases.len();
        let mut exchanges: Vec<_> = cases.into_iter().map(|case| exchange(case, comm)).collect();
        // Messages may be at any position among the others, a different one on each rank.
        let mut group = comm.group();
        exchanges.iter_mut().try_for_each(|exchange| exchange.queue(&mut group))?;
        group.run()?;
        exchanges.iter().for_each(|exchange| exchange.check());
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
