//! The sequence of steps: calls on groups, and the groups themselves.

use super::{
    super::{fault::Kind, settings::FabricChoice},
    GroupPlan, Round, Sizes, Step, Work, calls,
};
use crate::reference::{Call, Random, traffic::Traffic};
use std::ops::RangeInclusive;
use tbccl::{Collective, Transport};

/// Steps of a round, without those that faults need.
const STEPS: RangeInclusive<u64> = 8..=30;

/// Groups of a round, besides the world.
const MAX_GROUPS: usize = 6;

/// Writes the steps of a round.
pub(super) fn write(round: &mut Round, random: &mut Random) {
    round.newcomers = newcomers(round, random);
    let world = (0..round.ranks).collect();
    round.groups.push(GroupPlan { members: world, made_by: None, is_tagged: false });
    let count = STEPS.start() + random.below(STEPS.end() - STEPS.start() + 1);
    let mut writer = Writer { traffics: 0, grows: round.newcomers > 0, open: vec![0], round, random };
    let (grow_at, fault_at) = (writer.random.below(count), writer.random.below(count));
    for at in 0..count {
        if at == grow_at && writer.grows {
            writer.grow();
        }
        if at == fault_at {
            writer.write_for_faults();
        }
        writer.write_one();
    }
    writer.push(0, Work::Barrier);
}

/// Returns how many processes join later.
fn newcomers(round: &Round, random: &mut Random) -> u32 {
    let has_room = !matches!(round.setting.fabric, Some(FabricChoice::File { .. }));
    match round.setting.transport {
        // A Mac's device has too few queue pairs for the connections of another set of processes.
        _ if round.setting.fabric_name() == Some("apple-tb5") => 0,
        _ if !has_room || !random.happens(1, 6) => 0,
        Transport::Verbs | Transport::MixedVerbs => 1,
        _ => 1 + random.below(2) as u32,
    }
}

struct Writer<'r> {
    round: &'r mut Round,
    random: &'r mut Random,
    /// Groups that are not closed.
    open: Vec<usize>,
    traffics: u32,
    grows: bool,
}

impl Writer<'_> {
    fn push(&mut self, group: usize, work: Work) {
        self.open.extend(work.makes());
        if work == Work::Close {
            self.open.retain(|open| *open != group);
        }
        self.round.steps.push(Step { group, work });
    }

    /// Adds a group that the next step makes; returns its index.
    fn make(&mut self, members: Vec<u32>, is_tagged: bool) -> usize {
        let made_by = Some(self.round.steps.len());
        self.round.groups.push(GroupPlan { members, made_by, is_tagged });
        self.round.groups.len() - 1
    }

    /// Writes a random step.
    fn write_one(&mut self) {
        let group = self.random.pick(&self.open);
        if self.random.happens(1, 20) && group != 0 {
            return self.push(group, Work::Close);
        }
        if self.round.groups[group].is_tagged {
            let traffic = self.traffic();
            return self.push(group, Work::Traffic(traffic));
        }
        let may_make = self.round.groups.len() <= MAX_GROUPS;
        let work = match self.random.below(40) {
            0 | 1 if may_make => self.split(group),
            2 | 3 if may_make => self.tag(group),
            4 if may_make && self.round.members(group).len() > 1 => self.shrink(group),
            5..=8 => Work::Calls(self.calls(group)),
            9 => Work::Barrier,
            _ => {
                let sizes = self.sizes(group);
                Work::Call(calls::call(sizes, self.random))
            }
        };
        self.push(group, work);
    }

    fn sizes(&mut self, group: usize) -> Sizes {
        let is_slow = self.round.has(Kind::Bandwidth);
        let max_bytes = match self.random.below(8) {
            _ if is_slow => 64 << 10,
            0 => 8 << 20,
            1..=3 => 1 << 20,
            _ => 64 << 10,
        };
        Sizes {
            ranks: self.round.members(group).len() as u32,
            max_bytes,
            names_algorithms: self.round.option("TBCCL_NUMERICS").is_none(),
        }
    }

    fn calls(&mut self, group: usize) -> Vec<crate::reference::Case> {
        let sizes = Sizes { max_bytes: 64 << 10, names_algorithms: false, ..self.sizes(group) };
        (0..=self.random.below(6)).map(|_| calls::call(sizes, self.random)).collect()
    }

    fn traffic(&mut self) -> Traffic {
        self.traffics += 1;
        let limit = 3 * self.round.timeout + std::time::Duration::from_secs(5);
        let messages = 10 + self.random.below(140) as u32;
        Traffic { seed: self.random.bits(), round: self.traffics, messages, limit }
    }

    fn split(&mut self, parent: usize) -> Work {
        let members = self.round.members(parent).to_vec();
        let colors: Vec<Option<u32>> = members
            .iter()
            .map(|_| [None, Some(0), Some(0), Some(7)][self.random.below(4) as usize])
            .collect();
        self.split_by(parent, &colors)
    }

    fn split_by(&mut self, parent: usize, colors: &[Option<u32>]) -> Work {
        let members = self.round.members(parent).to_vec();
        let keys: Vec<i32> = members.iter().map(|_| self.random.below(3) as i32 - 1).collect();
        let mut makes = Vec::new();
        for color in [0, 7] {
            let mut of_color: Vec<(i32, usize)> =
                (0..members.len()).filter(|at| colors[*at] == Some(color)).map(|at| (keys[at], at)).collect();
            of_color.sort_unstable();
            if !of_color.is_empty() {
                let group = of_color.into_iter().map(|(_, at)| members[at]).collect();
                makes.push(self.make(group, false));
            }
        }
        Work::Split { colors: colors.to_vec(), keys, makes }
    }

    fn tag(&mut self, parent: usize) -> Work {
        let members = self.round.members(parent).to_vec();
        Work::Tag { makes: self.make(members, true) }
    }

    fn shrink(&mut self, parent: usize) -> Work {
        let members = self.round.members(parent).to_vec();
        let keeps = self.random.below(members.len() as u64) as usize;
        let mut without: Vec<u32> = (0..members.len() as u32).collect();
        without.retain(|rank| *rank != keeps as u32 && self.random.happens(1, 3));
        let rest = (0..).zip(&members).filter(|(rank, _)| !without.contains(rank)).map(|(_, number)| *number);
        let rest = rest.collect();
        Work::Shrink { makes: self.make(rest, false), without }
    }

    /// Writes the step by which new processes join.
    fn grow(&mut self) {
        self.grows = false;
        let groups: Vec<usize> =
            self.open.iter().copied().filter(|group| !self.round.groups[*group].is_tagged).collect();
        let parent = self.random.pick(&groups);
        let mut members = self.round.members(parent).to_vec();
        let host = self.random.below(members.len() as u64) as u32;
        members.extend(self.round.ranks..self.round.processes());
        let makes = self.make(members, false);
        self.push(parent, Work::Grow { host, makes });
        let sizes = self.sizes(makes);
        let call = calls::call(sizes, self.random);
        self.push(makes, Work::Call(call));
    }

    /// Writes steps of the world that some faults need.
    fn write_for_faults(&mut self) {
        if self.round.has(Kind::Mismatch) {
            let sizes = Sizes { max_bytes: 1 << 20, names_algorithms: false, ..self.sizes(0) };
            let mut case = calls::of(Call::Even(Collective::AllReduce), sizes, self.random);
            case.count = case.count.max(1);
            self.push(0, Work::Call(case));
        }
        if self.round.has(Kind::Descriptors) || self.round.has(Kind::Memory) {
            let everyone = vec![Some(0); self.round.ranks as usize];
            let work = self.split_by(0, &everyone);
            self.push(0, work);
        }
    }
}
