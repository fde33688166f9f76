//! Comparison of cablings: the price of every collective on each, with its fastest algorithm.

use super::price::{CallShape, Candidates, Effort, Model, Unpriced};
use super::{Choice, Names, Requirements, Tuning};
use crate::schedule::InPlace;
use crate::simulate::Costs;
use crate::{Collective, Rank};
use topology::{Cabling, Reach, Speed};

/// The prices of one collective.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The collective.
    pub collective: Collective,
    /// For the large size: the choice, and the bus bandwidth in bytes per second.
    pub large: Result<(Choice, f64), Unpriced>,
    /// For the small size: the choice, and the time in seconds.
    pub small: Result<(Choice, f64), Unpriced>,
}

/// The prices of all collectives on one cabling.
#[derive(Clone, Debug, PartialEq)]
pub struct CablingReport {
    /// The cabling.
    pub cabling: Cabling,
    /// One entry per collective, in the order of [`Collective::ALL`].
    pub entries: Vec<Entry>,
}

impl CablingReport {
    /// Returns the entry of `collective`.
    #[must_use]
    pub fn of(&self, collective: Collective) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.collective == collective)
    }

    /// Returns the number of collectives that some algorithm can do on this cabling.
    #[must_use]
    pub fn feasible_collectives(&self) -> usize {
        self.entries.iter().filter(|entry| entry.large.is_ok()).count()
    }

    /// Returns the bus bandwidth of a large `all_reduce` in bytes per second, and the time of a small one in
    /// seconds.
    fn all_reduce(&self) -> (f64, f64) {
        let entry = self.of(Collective::AllReduce);
        let large = entry.and_then(|entry| entry.large.as_ref().ok()).map_or(0.0, |(_, busbw)| *busbw);
        let small = entry.and_then(|entry| entry.small.as_ref().ok());
        (large, small.map_or(f64::INFINITY, |(_, seconds)| *seconds))
    }
}

/// Prices every collective on a cabling. `large` and `small` are the bytes of the larger of input and output.
#[must_use]
pub fn survey(cabling: Cabling, speed: Speed, costs: &Costs, large: u64, small: u64) -> CablingReport {
    let model = Model { cluster: cabling.cluster(speed), costs: costs.clone() };
    let ranks = cabling.hosts;
    let reach = Reach::new(ranks, |a, b| model.cluster.route(a, b).is_some());
    let requirements = Requirements::default().within(ranks, &reach);
    let entry = |collective: Collective| {
        let (root, in_place) = (Rank(0), InPlace::No);
        let shape = CallShape { collective, ranks, root, in_place, requirements };
        let candidates = Candidates::new(&model, shape, &Reach::complete(), &Names::default());
        let at = |bytes: u64| {
            let block = block_bytes(collective, ranks, bytes);
            let verdict = candidates.clone()?.price(block, &Tuning::default(), Effort::Pruned)?;
            Ok((verdict.choice, verdict.seconds))
        };
        let busbw = |(choice, seconds): (Choice, f64)| {
            (choice, large as f64 / seconds * collective.busbw_factor(ranks))
        };
        Entry { collective, large: at(large).map(busbw), small: at(small) }
    };
    CablingReport { entries: Collective::ALL.map(entry).into(), cabling }
}

/// Returns the bytes of a block where the larger of input and output has `bytes` bytes.
#[must_use]
pub fn block_bytes(collective: Collective, ranks: u32, bytes: u64) -> u64 {
    match collective.input_blocks(ranks).max(collective.output_blocks(ranks)) {
        0 => 0,
        blocks => bytes / u64::from(blocks),
    }
}

/// Returns the best report. The criteria are, in order: the number of feasible collectives, the `all_reduce`
/// bandwidth (to a thousandth), the latency, the fewest cables.
#[must_use]
pub fn recommended(reports: &[CablingReport]) -> Option<&CablingReport> {
    let most_feasible = reports.iter().map(CablingReport::feasible_collectives).max()?;
    let feasible: Vec<&CablingReport> =
        reports.iter().filter(|report| report.feasible_collectives() == most_feasible).collect();
    let most = feasible.iter().map(|report| report.all_reduce().0).fold(0.0, f64::max);
    let fast = feasible.into_iter().filter(|report| report.all_reduce().0 >= most * 0.999);
    fast.min_by(|a, b| {
        let latency = a.all_reduce().1.total_cmp(&b.all_reduce().1);
        latency.then(a.cabling.cables().cmp(&b.cabling.cables()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use topology::cablings;

    fn best(hosts: u32, ports: u32) -> (String, Vec<CablingReport>) {
        let speed = Speed::new(5.0, 75.0);
        let reports: Vec<CablingReport> = cablings(hosts, ports)
            .0
            .into_iter()
            .map(|cabling| survey(cabling, speed, &Costs::rdma(), 4 << 20, 4096))
            .collect();
        (recommended(&reports).expect("something").cabling.name.clone(), reports)
    }

    #[test]
    fn a_mesh_where_ports_are_enough_for_it_and_none_where_not() {
        assert_eq!(best(4, 3).0, "mesh");
        let (five, reports) = best(5, 3);
        assert_eq!(five, "ring");
        // A line of cables carries every collective too, by relaying messages.
        let line = reports.iter().find(|report| report.cabling.name == "line").expect("possible");
        assert_eq!(line.feasible_collectives(), Collective::ALL.len());
        let relayed = line.of(Collective::AllToAll).and_then(|entry| entry.large.as_ref().ok());
        assert_eq!(relayed.map(|(choice, _)| choice.algorithm), Some("spanning_tree"));
    }

    #[test]
    fn eight_hosts_take_a_shape_in_which_everything_can_be_carried_out() {
        let (eight, reports) = best(8, 3);
        let of = |name: &str| reports.iter().find(|report| report.cabling.name == name).expect("possible");
        assert_eq!(of(&eight).feasible_collectives(), Collective::ALL.len());
        let most = reports.iter().filter(|report| report.feasible_collectives() == Collective::ALL.len());
        let most = most.map(|report| report.all_reduce().0).fold(0.0, f64::max);
        assert!(of(&eight).all_reduce().0 >= 0.999 * most, "{eight}");
    }

    #[test]
    fn three_cables_between_two_hosts_carry_more_than_one() {
        let (name, three) = best(2, 3);
        let (_, one) = best(2, 1);
        assert_eq!(name, "mesh");
        let ratio = three[0].all_reduce().0 / one[0].all_reduce().0;
        assert!((1.5..=3.0).contains(&ratio), "{ratio}");
    }
}
