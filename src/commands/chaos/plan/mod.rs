//! The plan of a round: ranks, communicators, calls and faults, as a function of a seed.
//!
//! The driver and all ranks derive the same plan. Processes have a *number*, which is their rank in the first
//! communicator, the world; processes that join later have the next numbers. A *group* is a communicator of
//! the plan, and group 0 is the world.
//!
//! | module | purpose |
//! |---|---|
//! | `aim` | choice of faults |
//! | `calls` | random calls |
//! | `fabric` | fabric files |
//! | `options` | options of the library |
//! | `steps` | sequence of calls, and of groups |

mod aim;
mod calls;
mod fabric;
mod options;
mod steps;

pub(super) use calls::{Sizes, call};

use super::{
    fault::{Effect, Fault, Kind, Place},
    settings::{FabricChoice, Setting, Start},
};
use crate::reference::{Case, Random, mix, traffic::Traffic};
use std::time::Duration;
use tbccl::Transport;

/// A group of processes that make calls together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GroupPlan {
    /// Numbers of the processes, in rank order.
    pub(super) members: Vec<u32>,
    /// The step that makes it; `None` for the world.
    pub(super) made_by: Option<usize>,
    /// Whether it carries tagged messages instead of collectives.
    pub(super) is_tagged: bool,
}

impl GroupPlan {
    /// Returns the rank of a process in this group.
    pub(super) fn rank_of(&self, number: u32) -> Option<usize> {
        self.members.iter().position(|member| *member == number)
    }
}

/// A step, which all members of its group make.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Step {
    /// Index of the group.
    pub(super) group: usize,
    pub(super) work: Work,
}

/// The work of a step.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Work {
    /// One call.
    Call(Case),
    /// A group of calls that run together.
    Calls(Vec<Case>),
    Barrier,
    /// Tagged messages.
    Traffic(Traffic),
    /// Splits the group; each color makes the group of the same position in `makes`.
    Split {
        colors: Vec<Option<u32>>,
        keys: Vec<i32>,
        makes: Vec<usize>,
    },
    /// Makes a group for tagged messages of all members.
    Tag {
        makes: usize,
    },
    /// Makes a group without these ranks.
    Shrink {
        without: Vec<u32>,
        makes: usize,
    },
    /// Makes a group with new processes. The rank `host` makes the id.
    Grow {
        host: u32,
        makes: usize,
    },
    /// Closes the group.
    Close,
}

impl Work {
    /// Returns the groups that the step makes.
    pub(super) fn makes(&self) -> &[usize] {
        match self {
            Work::Split { makes, .. } => makes,
            Work::Tag { makes } | Work::Shrink { makes, .. } | Work::Grow { makes, .. } => {
                std::slice::from_ref(makes)
            }
            _ => &[],
        }
    }

    /// Returns a word for people.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Work::Call(case) => case.kind.call.collective().map_or("send and recv", |call| call.name()),
            Work::Calls(_) => "group",
            Work::Barrier => "barrier",
            Work::Traffic(_) => "messages",
            Work::Split { .. } => "split",
            Work::Tag { .. } => "split for messages",
            Work::Shrink { .. } => "shrink",
            Work::Grow { .. } => "grow",
            Work::Close => "close",
        }
    }
}

/// Choices of the user that affect all plans.
#[derive(Clone, Debug, Default)]
pub(super) struct Wishes {
    /// Settings, of which round k takes number k modulo their count. At least one.
    pub(super) settings: Vec<Setting>,
    /// Kinds of faults; all if empty.
    pub(super) faults: Vec<Kind>,
    /// Time limit of calls.
    pub(super) timeout: Duration,
}

impl Wishes {
    /// Returns the options with which a command has the same kinds of faults, after a space.
    pub(super) fn fault_options(&self) -> String {
        let names: Vec<&str> = self.faults.iter().map(|kind| kind.name()).collect();
        if names.is_empty() { String::new() } else { format!(" --faults {}", names.join(",")) }
    }
}

/// The plan of a round.
#[derive(Clone, Debug)]
pub(super) struct Round {
    pub(super) seed: u64,
    pub(super) number: u32,
    pub(super) setting: Setting,
    pub(super) start: Start,
    /// Processes of the world.
    pub(super) ranks: u32,
    /// Processes that join later.
    pub(super) newcomers: u32,
    /// Hosts, or nodes of the fabric, of the world.
    pub(super) nodes: u32,
    pub(super) per_node: u32,
    /// Cables between each two nodes, where there are devices.
    pub(super) cables_per_pair: u32,
    /// Whether messages over the cables are checked and repeated by the library.
    pub(super) is_unreliable: bool,
    pub(super) timeout: Duration,
    /// Environment variables of all ranks.
    pub(super) options: Vec<(&'static str, String)>,
    pub(super) groups: Vec<GroupPlan>,
    pub(super) steps: Vec<Step>,
    pub(super) faults: Vec<Fault>,
}

impl Round {
    /// Time that ranks wait for a cable. A rank that comes late to a call finds a silent cable after a
    /// second, and the others wait for it.
    pub(super) const CABLE_WAIT: Duration = Duration::from_millis(2500);

    /// Plans a round.
    pub(super) fn new(seed: u64, number: u32, wishes: &Wishes) -> Round {
        let setting = wishes.settings[number as usize % wishes.settings.len()].clone();
        let mut random = Random(mix(seed, number as usize));
        let mut round = Round::place(seed, number, setting, wishes.timeout, &mut random);
        options::choose(&mut round, &mut random);
        aim::choose_kinds(&mut round, &wishes.faults, &mut random);
        steps::write(&mut round, &mut random);
        aim::aim(&mut round, &mut random);
        round
    }

    /// Chooses the number of ranks, and the hosts that they run on.
    fn place(seed: u64, number: u32, setting: Setting, timeout: Duration, random: &mut Random) -> Round {
        let (nodes, per_node) = match (setting.transport, &setting.fabric) {
            (_, Some(FabricChoice::File { nodes, .. })) => {
                (*nodes, if setting.shares_memory() { 2 } else { 1 })
            }
            (Transport::Verbs, _) => (2 + random.below(2) as u32, 1),
            (Transport::MixedVerbs, _) => random.pick(&[(2, 2), (2, 2), (3, 1), (2, 1)]),
            (Transport::Mixed, _) => random.pick(&[(2, 1), (2, 2), (3, 1), (2, 3)]),
            (Transport::Tcp, _) => (2 + random.below(3) as u32, 1),
            _ => (1, 2 + random.below(4) as u32),
        };
        let starts = match setting.has_devices() {
            true => &[Start::Run, Start::Run, Start::Rendezvous, Start::Id][..],
            false => &[Start::Run, Start::Run, Start::Hosts, Start::Rendezvous, Start::Id],
        };
        Round {
            seed,
            number,
            start: random.pick(starts),
            ranks: nodes * per_node,
            newcomers: 0,
            nodes,
            per_node,
            cables_per_pair: 1 + u32::from(setting.has_devices()) * random.below(2) as u32,
            is_unreliable: false,
            timeout,
            options: Vec::new(),
            groups: Vec::new(),
            steps: Vec::new(),
            faults: Vec::new(),
            setting,
        }
    }

    /// Returns the number of processes.
    pub(super) fn processes(&self) -> u32 {
        self.ranks + self.newcomers
    }

    /// Returns the host, or the node of the fabric, of a process.
    pub(super) fn node_of(&self, number: u32) -> u32 {
        match number.checked_sub(self.ranks) {
            None => number / self.per_node,
            // No cable connects a node with itself.
            Some(new) if self.setting.transport == Transport::Verbs => self.nodes + new,
            Some(new) => new % self.nodes,
        }
    }

    /// Returns the name of the host that a process believes to be on, if it is not this machine's.
    pub(super) fn host_of(&self, number: u32) -> Option<String> {
        let is_named = matches!(self.setting.transport, Transport::Mixed | Transport::MixedVerbs);
        is_named.then(|| format!("node{}", self.node_of(number)))
    }

    /// Whether a fault can happen in the round.
    pub(super) fn may_have(&self, kind: Kind) -> bool {
        kind.is_possible(&Place {
            start: self.start,
            has_tcp: self.setting.has_tcp(),
            has_devices: self.setting.has_devices(),
            is_unreliable: self.is_unreliable,
            has_spare_cables: self.setting.has_devices() && self.cables_per_pair > 1,
        })
    }

    /// Returns the effect that a fault may have.
    pub(super) fn effect(&self, fault: &Fault) -> Effect {
        match fault.kind {
            // Another cable carries on.
            Kind::Cut | Kind::Overflow if self.cables_per_pair > 1 => Effect::None,
            kind => kind.row().effect,
        }
    }

    /// Returns the processes of which an error names one.
    pub(super) fn culprits(&self, fault: &Fault) -> Vec<u32> {
        let on = |nodes: &[u32]| {
            let all = 0..self.processes();
            all.filter(|number| nodes.contains(&self.node_of(*number))).collect()
        };
        match fault.kind {
            Kind::Agent => on(&[self.node_of(fault.rank)]),
            Kind::Reset => (0..self.processes()).collect(),
            kind if kind.aims_at_cable() => on(&self.cable(fault.cable).map(|end| end.1)),
            _ => vec![fault.rank],
        }
    }

    /// Returns the duration of the longest fault.
    pub(super) fn longest_fault(&self) -> Duration {
        self.faults.iter().map(|fault| fault.lasting).max().unwrap_or_default()
    }

    /// Whether the round has a fault of a kind.
    pub(super) fn has(&self, kind: Kind) -> bool {
        self.faults.iter().any(|fault| fault.kind == kind)
    }

    /// Returns the members of a group that make its next step in common with a process.
    pub(super) fn members(&self, group: usize) -> &[u32] {
        &self.groups[group].members
    }

    /// Returns the processes that join by a step.
    pub(super) fn newcomers_of(&self, step: &Step) -> &[u32] {
        match step.work {
            Work::Grow { makes, .. } => &self.members(makes)[self.members(step.group).len()..],
            _ => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    pub(super) fn wishes() -> Wishes {
        Wishes { settings: Setting::all(&[], &[]), faults: Vec::new(), timeout: Duration::from_secs(3) }
    }

    pub(super) fn rounds(count: u32) -> Vec<Round> {
        (0..count).map(|number| Round::new(7, number, &wishes())).collect()
    }

    #[test]
    fn a_plan_is_a_function_of_the_seed() {
        for number in 0..60 {
            let [a, b] = [7, 7].map(|seed| format!("{:?}", Round::new(seed, number, &wishes())));
            assert_eq!(a, b);
            assert_ne!(a, format!("{:?}", Round::new(8, number, &wishes())));
        }
    }

    #[test]
    fn a_round_is_the_same_when_its_setting_is_the_only_one() {
        for round in rounds(30) {
            let alone = Wishes { settings: vec![round.setting.clone()], ..wishes() };
            assert_eq!(format!("{round:?}"), format!("{:?}", Round::new(7, round.number, &alone)));
        }
    }

    #[test]
    fn every_setting_has_every_possible_start_and_fault() {
        // The rarest fault of a setting is in few of some hundred rounds.
        let rounds = rounds(20_000);
        for setting in &wishes().settings {
            let of_it: Vec<&Round> = rounds.iter().filter(|round| round.setting == *setting).collect();
            let starts: HashSet<&str> = of_it.iter().map(|round| round.start.name()).collect();
            assert_eq!(starts.len(), if setting.has_devices() { 3 } else { 4 }, "{setting}: {starts:?}");
            for row in super::super::fault::TABLE {
                let is_possible = of_it.iter().any(|round| round.may_have(row.kind));
                let is_planned = of_it.iter().any(|round| round.has(row.kind));
                assert_eq!(is_possible, is_planned, "{} on {setting}", row.name);
            }
        }
    }

    #[test]
    fn members_take_part_only_in_groups_that_exist() {
        for round in rounds(300) {
            let mut open: HashSet<usize> = HashSet::from([0]);
            for (at, step) in round.steps.iter().enumerate() {
                assert!(open.contains(&step.group), "round {}, step {at}", round.number);
                for made in step.work.makes() {
                    assert_eq!(round.groups[*made].made_by, Some(at));
                    assert!(open.insert(*made));
                }
                if step.work == Work::Close {
                    assert!(step.group != 0 && open.remove(&step.group));
                }
                let is_message = matches!(step.work, Work::Traffic(_));
                assert!(step.work == Work::Close || is_message == round.groups[step.group].is_tagged);
            }
        }
    }

    #[test]
    fn members_of_groups_are_processes_and_differ() {
        for round in rounds(300) {
            for group in &round.groups {
                let set: HashSet<u32> = group.members.iter().copied().collect();
                assert_eq!(set.len(), group.members.len());
                assert!(!set.is_empty() && set.iter().all(|number| *number < round.processes()));
            }
        }
    }
}
