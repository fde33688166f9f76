//! Metrics of the ranks of this process: the counters of all communicators, and the states of open ones.

use super::{control::Control, counters::counters_of, gauges::EndpointState, ledger, live};
use crate::{
    metrics::{RailMetrics, RankMetrics},
    recorder::Outcome,
};
use std::{collections::BTreeMap, sync::Arc};
use transport::driver::RailInfo;

/// Maximum number of rails of a rank in a status.
const MAX_RAILS: usize = 64;

/// Maximum size of the metrics in a status, as text.
const MAX_BYTES: usize = 16 << 10;

/// Bytes per second of a gigabit per second.
const GIGABIT: f64 = 1e9 / 8.0;

/// Returns the metrics of the ranks of this process, as far as they fit a message.
pub(super) fn fitting(mut metrics: Vec<RankMetrics>) -> Vec<RankMetrics> {
    metrics.iter_mut().for_each(|rank| rank.limit_rails(MAX_RAILS));
    let size = |metrics: &Vec<RankMetrics>| serde_json::to_string(metrics).map_or(0, |text| text.len());
    while size(&metrics) > MAX_BYTES {
        match metrics.as_mut_slice() {
            [only] if !only.rails.is_empty() => only.limit_rails(only.rails.len() / 2),
            _ => drop(metrics.pop()),
        }
    }
    metrics
}

/// Returns the metrics of the ranks of this process. Counters of links are those that were published last.
pub(super) fn of_process(live: &[Arc<Control>]) -> Vec<RankMetrics> {
    let entries = ledger::entries();
    let is_open = |control: &&Arc<Control>| live::is_open(control);
    let of_place = |place: u64| live.iter().filter(is_open).filter(move |control| control.place() == place);
    let metrics = entries.iter().map(|entry| {
        let mut metrics = entry.metrics.clone();
        let mut slabs = BTreeMap::new();
        for control in of_place(entry.place) {
            metrics.add_counters(&counters_of(control));
            add_state(&mut metrics, control, &mut slabs);
        }
        metrics.library_bytes = slabs.values().sum();
        metrics
    });
    metrics.collect()
}

/// Adds the state of an open communicator. `slabs` are the bytes in use by the address of each slab, since
/// communicators may share one.
fn add_state(metrics: &mut RankMetrics, control: &Control, slabs: &mut BTreeMap<usize, u64>) {
    let EndpointState { rails, slab: (address, bytes) } = control.gauges.endpoint();
    metrics.communicators += 1;
    metrics.program_bytes += control.gauges.lent_bytes();
    slabs.insert(address, bytes);
    if metrics.rails.is_empty() && control.made_by().is_empty() {
        metrics.rails = rails.iter().flat_map(|(peer, rails)| rails_to(*peer, rails)).collect();
    }
    let calls = control.recorder.latest();
    let began = calls.iter().filter(|call| call.outcome == Outcome::UnderWay).map(|call| call.began_ago);
    metrics.call_seconds = began.fold(metrics.call_seconds, f64::max);
}

fn rails_to(peer: u32, rails: &[RailInfo]) -> impl Iterator<Item = RailMetrics> + '_ {
    (0..).zip(rails).map(move |(number, rail)| RailMetrics {
        peer,
        number,
        ours: rail.ours.clone(),
        theirs: rail.theirs.clone(),
        is_up: rail.is_up,
        signaling_rate: rail.gigabits.map(|gigabits| gigabits * GIGABIT),
        sent_bytes: rail.sent_bytes,
        received_bytes: rail.received_bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Communicator, Config, Rank, metrics::OperationMetrics};
    use collectives::ReduceOp;
    use std::{net::TcpListener, sync::OnceLock, thread};

    /// Returns options with which calls are counted. The metrics of this process are served at a port of its
    /// own.
    fn config() -> Config {
        static PORT: OnceLock<u16> = OnceLock::new();
        let port = PORT.get_or_init(|| {
            let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
            listener.local_addr().expect("it has one").port()
        });
        let metrics = Some(port.to_string().parse().expect("an address"));
        Config { slab_bytes: Some(1 << 20), metrics, ..Config::default() }
    }

    fn pair() -> Vec<Communicator> {
        Communicator::local(2, &config()).expect("memory for a test")
    }

    /// Returns the metrics of the rank that has the communicator with this number, at this place.
    fn metrics_of((job, place): (u64, u64)) -> RankMetrics {
        let rank =
            ledger::entries().iter().find(|entry| entry.place == place).map(|entry| entry.metrics.rank);
        let all = of_process(&live::all()).into_iter();
        let mut own = all.filter(|metrics| metrics.job == job && Some(metrics.rank) == rank);
        own.next().expect("the ledger has it")
    }

    fn named(comm: &Communicator) -> (u64, u64) {
        (comm.control().id(), comm.control().place())
    }

    fn operation<'m>(metrics: &'m RankMetrics, collective: &str) -> &'m OperationMetrics {
        metrics.operations.iter().find(|of| of.collective == collective).expect("it was called")
    }

    /// Makes three sums of 1000 `f32`, two barriers, and a message of 40 bytes from rank 0 to rank 1.
    fn work(comm: &mut Communicator) {
        let mut data = [1.0f32; 1000];
        (0..3).for_each(|_| comm.all_reduce_in_place(&mut data, ReduceOp::Sum).expect("a sum"));
        (0..2).for_each(|_| comm.barrier().expect("both are there"));
        match comm.rank() {
            Rank(0) => comm.send(&[7u64; 5], Rank(1)).expect("it is received"),
            _ => comm.recv(&mut [0u64; 5], Rank(0)).expect("it is sent"),
        }
    }

    #[test]
    fn counts_after_known_work_are_the_known_numbers() {
        let names: Vec<(u64, u64)> = thread::scope(|scope| {
            let ranks = pair().into_iter().map(|mut comm| {
                scope.spawn(move || {
                    let name = named(&comm);
                    work(&mut comm);
                    let open = metrics_of(name);
                    assert_eq!((open.begun, open.finished, open.communicators), (6, 6, 1));
                    let sums = operation(&open, "all_reduce");
                    assert_eq!((sums.done, sums.failed, sums.bytes), (3, 0, 12_000));
                    assert!((sums.bus_bytes - 12_000.0).abs() < 1e-6, "the factor of two ranks is 1");
                    assert!(sums.seconds > 0.0, "{sums:?}");
                    assert_eq!((operation(&open, "barrier").done, operation(&open, "barrier").bytes), (2, 0));
                    let message = operation(&open, if open.rank == 0 { "send" } else { "recv" });
                    assert_eq!((message.done, message.bytes, message.transport.as_str()), (1, 40, "local"));
                    drop(comm);
                    name
                })
            });
            ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().expect("no panic")).collect()
        });
        for name in names {
            let closed = metrics_of(name);
            assert_eq!((closed.communicators, closed.finished), (0, 6), "its counters stay");
            assert_eq!(operation(&closed, "all_reduce").bytes, 12_000);
            assert!(closed.links[0].received_messages >= 4, "{closed:?}");
        }
    }

    #[test]
    fn a_communicator_made_from_another_one_counts_for_the_same_rank() {
        thread::scope(|scope| {
            for mut comm in pair() {
                scope.spawn(move || {
                    let mut part = comm.split(Some(0), 0, &config()).expect("both split").expect("a color");
                    work(&mut part);
                    comm.barrier().expect("both are there");
                    let both = metrics_of(named(&comm));
                    assert_eq!((both.communicators, operation(&both, "barrier").done), (2, 3));
                    drop(part);
                    let one = metrics_of(named(&comm));
                    assert_eq!((one.communicators, operation(&one, "barrier").done), (1, 3));
                    comm.barrier().expect("both are there");
                });
            }
        });
    }

    #[test]
    fn errors_are_counted_by_type() {
        let mut comms = pair();
        let names: Vec<_> = comms.iter().map(named).collect();
        let mut first = comms.remove(0);
        first.control().abort();
        first.barrier().expect_err("it was aborted");
        assert_eq!(metrics_of(names[0]).errors, BTreeMap::from([("Aborted".to_owned(), 1)]));
        drop((first, comms));
        assert_eq!(metrics_of(names[0]).errors, BTreeMap::from([("Aborted".to_owned(), 1)]), "it is closed");
    }

    #[test]
    fn metrics_of_a_process_with_many_ranks_and_rails_fit_a_message() {
        let rails = vec![RailMetrics { ours: "rdma_en2".repeat(9), ..RailMetrics::default() }; 4000];
        let rank = RankMetrics { rails, ..RankMetrics::default() };
        let text = |metrics: Vec<RankMetrics>| serde_json::to_string(&fitting(metrics)).expect("JSON");
        assert!(text(vec![rank.clone()]).len() > 2000, "some rails are kept");
        assert!(text(vec![rank; 200]).len() <= MAX_BYTES);
    }
}
