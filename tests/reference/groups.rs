//! Groups of calls: each gives what it gives alone.

use crate::{
    case::{Call, Case, Kind, Way, mix},
    definition::Sample,
    exchange::{Exchange, exact},
    work::with_element,
};
use half::{bf16, f16};
use num_complex::Complex32;
use tbccl::{Communicator, DType, Group, Result};

/// Groups for each number of ranks.
const GROUPS: usize = 64;

/// The calls of a group at most.
const CALLS: u64 = 7;

/// Mostly small, so that sums are fused; some in several pieces.
const COUNTS: [usize; 6] = [0, 1, 5, 64, 129, 1031];

/// A call of a group, whatever its element type.
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

/// The calls of a group: the same on all ranks. Messages are among them, on one rank to itself.
fn cases(ranks: u32, group: usize) -> Vec<Case> {
    let seed = mix(u64::from(ranks) << 40, group);
    let calls = Call::all();
    let mut cases: Vec<Case> = Vec::new();
    for at in 0..=(seed >> 7) % CALLS {
        let seed = mix(seed, at as usize);
        let pick = |shift: u32, among: usize| (seed >> shift) as usize % among;
        let kind = match cases.last() {
            // So that there are sums in a row.
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

/// Runs groups; how many calls they had.
pub(crate) fn groups(comm: &mut Communicator) -> Result<usize> {
    let mut number = 0;
    for turn in 0..GROUPS {
        let cases = cases(comm.size(), turn);
        number += cases.len();
        let mut exchanges: Vec<_> = cases.into_iter().map(|case| exchange(case, comm)).collect();
        // Messages may stand anywhere among the others, on each rank elsewhere.
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
