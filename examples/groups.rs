//! Measures how long `split` takes to make a communicator. Every rank runs it:
//!
//! ```sh
//! cargo build --release -p tbccl-cli -p tbccl-softrdma --lib --bins --examples
//! target/release/tbccl fabric run --fabric configs/fabrics/apple-tb5-mesh2.toml --transport verbs -- \
//!     target/release/examples/groups
//! target/release/tbccl run -n 4 --transport tcp -- target/release/examples/groups 2
//! ```
//!
//! The first argument is the number of ranks of a group (all ranks), the second the number of groups (200).
//! Groups of fewer ranks take turns: ranks 0 and 1, then 1 and 2. Each group makes a sum, which is checked,
//! and every group is kept until 32 newer ones exist. The time of a group is that of the slowest of its
//! ranks, from a barrier of all ranks to the return of `split`.

#![allow(clippy::print_stdout, reason = "a report is what this prints")]

use std::{collections::VecDeque, error::Error, time::Instant};
use tbccl::{Communicator, Config, Rank, ReduceOp};

/// Groups made before the measurement.
const WARM_UP: usize = 10;
/// Groups that exist at a time.
const KEPT: usize = 32;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let mut comm = Communicator::from_env()?;
    let ranks = comm.size();
    let size: u32 = args.next().map_or(Ok(ranks), |text| text.parse())?;
    let groups: usize = args.next().map_or(Ok(200), |text| text.parse())?;
    if !(1..=ranks).contains(&size) || groups == 0 {
        return Err(format!("a group has from 1 to {ranks} ranks, and there is at least one group").into());
    }
    let config = Config::from_env()?;
    let mut kept = VecDeque::new();
    let mut times = Vec::new();
    for round in 0..WARM_UP + groups {
        let first = round as u32 % ranks;
        let is_member = (comm.rank().0 + ranks - first) % ranks < size;
        comm.barrier()?;
        let began = Instant::now();
        let made = comm.split(is_member.then_some(0), 0, &config)?;
        let mut took = [began.elapsed().as_secs_f64() * 1e6 * f64::from(u8::from(is_member))];
        comm.all_reduce_in_place(&mut took, ReduceOp::Max)?;
        if round >= WARM_UP {
            times.push(took[0]);
        }
        if let Some(mut group) = made {
            let mut sum = [1u32];
            group.all_reduce_in_place(&mut sum, ReduceOp::Sum)?;
            if sum[0] != size {
                return Err(format!("a group of {size} ranks counts {}", sum[0]).into());
            }
            kept.push_back(group);
            if kept.len() > KEPT {
                kept.pop_front();
            }
        }
    }
    times.sort_by(f64::total_cmp);
    if comm.rank() == Rank(0) {
        let at = |part: usize| times[(times.len() * part / 100).min(times.len() - 1)];
        println!(
            "{size} of {ranks} ranks, {}: median {:.0} us, p90 {:.0} us, least {:.0} us, most {:.0} us \
             ({} groups)",
            comm.transport(),
            at(50),
            at(90),
            at(0),
            at(100),
            times.len()
        );
    }
    Ok(())
}
