//! Compares simulated with measured times of a collective. Every rank runs it, on a fabric of software
//! devices whose cables have latency and bandwidth:
//!
//! ```sh
//! cargo build -p tbccl-cli -p tbccl-softrdma --examples --bins --lib
//! fabric=configs/fabrics/ib-slow4.toml
//! TBCCL_TRANSPORT=verbs TBCCL_ALGO=ring target/debug/tbccl fabric run --fabric $fabric -- \
//!     target/debug/examples/agreement $fabric all_reduce
//! ```
//!
//! `make agreement` does that for every algorithm on two, three and four ranks.
//!
//! All ranks are processes of one machine and share its clock. A call is therefore measured as a simulation
//! prices it: from a start time that all ranks have agreed on, until the last rank is done. Each size is
//! measured several times, and the median counts. Calls that a rank began late, because the machine was busy,
//! do not count. The buffers are registered memory, so nothing is copied on the way.
//!
//! One number is calibrated on the fabric first: the cost of a message to a rank besides the cable. It is the
//! lower quartile of 200 half round trips of 8 bytes between ranks 0 and 1, minus the latency and bandwidth
//! of the cable. Everything else comes from [`Costs::rdma`](collectives::simulate::Costs::rdma), or for
//! Apple's devices from [`Costs::rdma_held`](collectives::simulate::Costs::rdma_held), and from the fabric
//! file. Control words wait behind data, since the software device serves a cable in the order of posting.

#![allow(clippy::print_stdout, reason = "an example says what it did")]

use collectives::{
    Spec, plan,
    select::price::Model,
    simulate::{Costs, bounds::bounds, simulate},
};
use rustix::time::{ClockId, clock_gettime};
use std::{error::Error, time::Duration};
use tbccl::{Buffer, Collective, Communicator, DType, Rank, ReduceOp};
use topology::Cluster;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Bytes of the larger of input and output of each operation.
const SIZES: [u64; 4] = [4 << 10, 64 << 10, 256 << 10, 16 << 20];
/// Calls per size; the first `WARM_UP` calls do not count.
const RUNS: usize = 14;
const WARM_UP: usize = 3;
/// Round trips of the calibration.
const ROUND_TRIPS: usize = 200;
/// Microseconds between the agreement on a start time and that time.
const START_DELAY_US: u64 = 20_000;
/// Microseconds of delay from which a rank's late start invalidates a measurement.
const MAX_DELAY_US: f64 = 60.0;

fn main() -> Outcome<()> {
    let args: Vec<String> = std::env::args().collect();
    let [_, fabric, operation] = &args[..] else {
        return Err("the fabric's file and the name of a collective were expected".into());
    };
    let Model { cluster, costs } = Model::from_toml(&std::fs::read_to_string(fabric)?)?;
    let collective: Collective = operation.parse()?;
    let mut comm = Communicator::from_env()?;
    let costs = calibrated_costs(&mut comm, &cluster, &costs)?;
    let sizes = if collective == Collective::Barrier { &[0][..] } else { &SIZES[..] };
    for bytes in sizes {
        let mut call = Call::new(&comm, collective, *bytes)?;
        let times = measure(&mut comm, &mut call)?;
        if comm.rank() == Rank(0) {
            println!("{}", row(&comm, &call, &cluster, &costs, times)?);
        }
    }
    comm.barrier()?;
    Ok(())
}

/// Returns microseconds of a clock that all processes of the machine share.
fn now_us() -> f64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 * 1e-3
}

/// A collective with its registered buffers.
struct Call {
    collective: Collective,
    /// Elements per block.
    count: usize,
    input: Buffer<f32>,
    output: Buffer<f32>,
}

impl Call {
    fn new(comm: &Communicator, collective: Collective, bytes: u64) -> Outcome<Call> {
        let (inputs, outputs) = (collective.input_blocks(comm.size()), collective.output_blocks(comm.size()));
        let count = (bytes / 4) as usize / inputs.max(outputs).max(1) as usize;
        let mut input = comm.alloc(count * inputs as usize)?;
        let mut output = comm.alloc(count * outputs as usize)?;
        // Writing maps the pages, which would otherwise be measured.
        input.fill(1.0);
        output.fill(0.0);
        Ok(Call { collective, count, input, output })
    }

    fn run(&mut self, comm: &mut Communicator) -> Outcome<()> {
        let Call { input, output, .. } = self;
        match self.collective {
            Collective::AllReduce => comm.all_reduce(input, output, ReduceOp::Sum)?,
            Collective::AllGather => comm.all_gather(input, output)?,
            Collective::ReduceScatter => comm.reduce_scatter(input, output, ReduceOp::Sum)?,
            Collective::Broadcast => comm.broadcast_from(input, output, Rank(0))?,
            Collective::AllToAll => comm.all_to_all(input, output)?,
            Collective::SendRecv => comm.send_recv(input, output)?,
            Collective::Barrier => comm.barrier()?,
            other => return Err(format!("{other} is not measured here").into()),
        }
        Ok(())
    }
}

/// Returns `costs` with the time of a message on this fabric.
fn calibrated_costs(comm: &mut Communicator, cluster: &Cluster, costs: &Costs) -> Outcome<Costs> {
    let mut trips = Vec::new();
    let mut value = [0u64];
    for _ in 0..ROUND_TRIPS {
        let before = now_us();
        match comm.rank() {
            Rank(0) => {
                comm.send(&value, Rank(1))?;
                comm.recv(&mut value, Rank(1))?;
            }
            Rank(1) => {
                comm.recv(&mut value, Rank(0))?;
                comm.send(&value, Rank(0))?;
            }
            _ => {}
        }
        trips.push((now_us() - before) / 2.0);
    }
    let route = cluster.route(Rank(0), Rank(1)).ok_or("no cable from rank 0 to rank 1")?;
    let rate = route.links().iter().map(|link| cluster.links()[*link as usize].bytes_per_second);
    let cable_seconds =
        (8 + 56 + costs.header_bytes) as f64 / rate.fold(f64::INFINITY, f64::min) + route.latency;
    let mut per_message = [(lower_quartile(&mut trips) - cable_seconds * 1e6).max(0.0) / 2.0];
    comm.broadcast(&mut per_message, Rank(0))?;
    let [per_message] = per_message;
    Ok(Costs {
        send_us: per_message,
        recv_us: per_message,
        grant_us: if costs.granted { 2.0 * per_message } else { 0.0 },
        words_wait: true,
        ..costs.clone()
    })
}

/// Waits until a time of the shared clock; sleeps first, then spins for at most 200 microseconds.
fn wait_until(moment: f64) {
    let asleep = moment - now_us() - 200.0;
    if asleep > 0.0 {
        std::thread::sleep(Duration::from_secs_f64(asleep * 1e-6));
    }
    while now_us() < moment {
        std::hint::spin_loop();
    }
}

/// Times of a call, in microseconds.
#[derive(Clone, Copy)]
struct Times {
    median: f64,
    min: f64,
    /// Number of calls that all ranks began in time.
    kept: usize,
}

/// Measures a call.
fn measure(comm: &mut Communicator, call: &mut Call) -> Outcome<Times> {
    let ranks = comm.size() as usize;
    let mut valid = Vec::new();
    let mut all = Vec::new();
    for run in 0..RUNS {
        comm.barrier()?;
        let mut start = [now_us() as u64 + START_DELAY_US];
        comm.broadcast(&mut start, Rank(0))?;
        let start = start[0] as f64;
        wait_until(start);
        let late = now_us() - start;
        call.run(comm)?;
        let own = [now_us() - start, late];
        let mut gathered = vec![0.0; 2 * ranks];
        comm.all_gather(&own, &mut gathered)?;
        let maximum = |which: usize| gathered.iter().skip(which).step_by(2).copied().fold(0.0, f64::max);
        if run >= WARM_UP {
            all.push(maximum(0));
            if maximum(1) < MAX_DELAY_US {
                valid.push(maximum(0));
            }
        }
    }
    let kept = valid.len();
    let times = if kept < 3 { &mut all } else { &mut valid };
    let median = median(times);
    Ok(Times { median, min: times[0], kept })
}

/// Returns the lower quartile. A rank that sleeps when its message arrives adds time that is no cost of the
/// message.
fn lower_quartile(numbers: &mut [f64]) -> f64 {
    numbers.sort_unstable_by(f64::total_cmp);
    numbers[numbers.len() / 4]
}

fn median(numbers: &mut [f64]) -> f64 {
    numbers.sort_unstable_by(f64::total_cmp);
    (numbers[(numbers.len() - 1) / 2] + numbers[numbers.len() / 2]) / 2.0
}

/// Returns a line with simulated and measured times, and their ratio.
fn row(
    comm: &Communicator,
    call: &Call,
    cluster: &Cluster,
    costs: &Costs,
    Times { median, min, kept }: Times,
) -> Outcome<String> {
    let Call { collective, count, .. } = *call;
    let ranks = comm.size();
    let (algorithm, segments) = comm.plan_of(collective, count as u64, DType::F32, Rank(0))?;
    let schedule = plan::plan(&Spec::new(collective, ranks)?.with_segments(segments)?, algorithm)?;
    let layout = schedule.layout(count as u64, 4)?;
    let predicted = simulate(&schedule, &layout, 4, cluster, costs)?.makespan * 1e6;
    let bound = bounds(collective, ranks, count as u64 * 4, cluster, costs).seconds() * 1e6;
    let bytes =
        count as u64 * 4 * u64::from(collective.input_blocks(ranks).max(collective.output_blocks(ranks)));
    Ok(format!(
        "{collective:<15} {algorithm:<20} {ranks:>5} {segments:>4} {bytes:>9} {bound:>9.0} {predicted:>9.0} \
        {median:>9.0} \
         {:>6.2} {min:>9.0} {:>6.2} {kept:>3} {:>6.1}",
        predicted / median,
        predicted / min,
        costs.send_us
    ))
}
