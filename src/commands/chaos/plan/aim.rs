//! The choice of faults: their kinds, the ranks and cables at which they aim, and their times.

use super::{
    super::fault::{Actor, Effect, Fault, Kind, TABLE},
    Round, Work,
};
use crate::reference::Random;
use std::time::Duration;
use tbccl::Collective;

/// Chooses the kinds of faults of a round, among those wished for; all if there are none.
pub(super) fn choose_kinds(round: &mut Round, wished: &[Kind], random: &mut Random) {
    let is_wished = |kind: &Kind| wished.is_empty() || wished.contains(kind);
    let possible: Vec<Kind> =
        TABLE.iter().map(|row| row.kind).filter(|kind| round.may_have(*kind) && is_wished(kind)).collect();
    // One round of eight has no faults, unless the user has asked for some.
    if possible.is_empty() || (wished.is_empty() && random.happens(1, 8)) {
        return;
    }
    let first = random.pick(&possible);
    let mut kinds = vec![first];
    // Another fault is one that no call may notice, so that errors have one cause.
    let others: Vec<Kind> = possible.into_iter().filter(|kind| goes_with(*kind, first)).collect();
    if !others.is_empty() && random.happens(1, 3) {
        kinds.push(random.pick(&others));
    }
    round.faults = kinds.into_iter().map(|kind| planned(kind, round, random)).collect();
}

/// Whether a fault may happen in a round with another one.
fn goes_with(kind: Kind, first: Kind) -> bool {
    let is_slow = |kind: Kind| matches!(kind, Kind::Bandwidth | Kind::Stall | Kind::Slow);
    let takes_time =
        |kind: Kind| matches!(kind, Kind::Pause | Kind::Slow | Kind::Busy | Kind::Late | Kind::Stall);
    kind != first
        && kind.row().effect == Effect::None
        && !(takes_time(kind) && takes_time(first))
        && !(is_slow(kind) && first.row().effect == Effect::Fails)
        // A rank that is being stopped does not come to its own fault.
        && !(first.row().actor == Actor::Rank && kind == Kind::Pause)
        && !(first.aims_at_cable() && kind.aims_at_cable())
        // Both ends of a cable make new connections, in less time than ranks may be stopped.
        && !(first.aims_at_cable() && takes_time(kind))
        && !(kind.aims_at_cable() && takes_time(first))
}

/// Returns a fault whose place is not chosen yet.
fn planned(kind: Kind, round: &Round, random: &mut Random) -> Fault {
    let delay = match random.below(10) {
        0 => 0,
        1..=6 => random.below(5_000),
        _ => random.below(50_000),
    };
    Fault {
        kind,
        rank: 0,
        step: 0,
        delay: Duration::from_micros(delay),
        lasting: kind.row().duration(random.below(1000), round.timeout, Round::CABLE_WAIT),
        cable: 0,
        end: 0,
        choice: random.bits(),
    }
}

/// Chooses the places of the faults of a round whose steps are known.
pub(super) fn aim(round: &mut Round, random: &mut Random) {
    let mut faults = std::mem::take(&mut round.faults);
    for fault in &mut faults {
        let steps: Vec<usize> =
            (0..round.steps.len()).filter(|step| is_place(fault.kind, round, *step)).collect();
        if !fault.kind.is_before_joining() {
            fault.step = random.pick(&steps);
        }
        let group = if fault.kind.is_before_joining() { 0 } else { round.steps[fault.step].group };
        // Only ranks of the world join before the first step.
        let members: Vec<u32> =
            round.members(group).iter().copied().filter(|number| *number < round.ranks).collect();
        fault.rank = random.pick(&members);
        if fault.kind.aims_at_cable() {
            fault.cable = random.below(round.cable_count() as u64) as usize;
            fault.end = random.below(2) as usize;
        }
    }
    round.faults = faults;
}

/// Whether a fault may happen at a step.
fn is_place(kind: Kind, round: &Round, step: usize) -> bool {
    let is_world = round.steps[step].group == 0;
    let has_old_members = round.members(round.steps[step].group).iter().any(|number| *number < round.ranks);
    let work = &round.steps[step].work;
    let is_split_of_all = |work: &Work| matches!(work, Work::Split { colors, .. } if !colors.contains(&None));
    has_old_members
        && match kind {
            Kind::Mismatch => {
                let is_sum = |work: &Work| work.name() == Collective::AllReduce.name();
                is_world && is_sum(work) && matches!(work, Work::Call(case) if case.count > 0)
            }
            Kind::Descriptors | Kind::Memory => is_world && is_split_of_all(work),
            Kind::Abort => !round.groups[round.steps[step].group].is_tagged && *work != Work::Close,
            _ => true,
        }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::rounds, *};

    #[test]
    fn faults_aim_at_ranks_that_make_their_steps() {
        for round in rounds(600) {
            for fault in &round.faults {
                let group = round.steps[fault.step].group;
                assert!(fault.rank < round.ranks);
                let is_member = round.members(group).contains(&fault.rank);
                assert!(is_member || fault.kind.is_before_joining(), "{}: {fault:?}", round.number);
                assert!(!fault.kind.aims_at_cable() || fault.cable < round.cable_count());
            }
        }
    }

    #[test]
    fn at_most_one_fault_of_a_round_may_be_noticed() {
        for round in rounds(600) {
            let noticed = round.faults.iter().filter(|fault| fault.kind.row().effect != Effect::None);
            assert!(noticed.count() <= 1, "{:?}", round.faults);
        }
    }

    #[test]
    fn short_faults_are_shorter_than_the_time_limit_and_long_ones_longer() {
        for round in rounds(600) {
            for fault in &round.faults {
                let limit = round.timeout;
                match fault.kind {
                    Kind::Stop | Kind::Away | Kind::Absent => assert!(fault.lasting > limit),
                    Kind::Unplug | Kind::Port => assert!(fault.lasting < Round::CABLE_WAIT * 2 / 3),
                    _ => assert!(fault.lasting < limit / 2, "{fault:?}"),
                }
            }
        }
    }
}
