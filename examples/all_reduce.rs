//! Sums an array over all ranks: `cargo build --example all_reduce`, then `tbccl run -n 4 --
//! target/debug/examples/all_reduce`.

#![allow(clippy::print_stdout, reason = "an example says what it did")]

use tbccl::{Communicator, ReduceOp};

fn main() -> tbccl::Result<()> {
    let mut comm = Communicator::from_env()?;
    let mine = vec![comm.rank().0 as f32; 1000];
    let mut sum = vec![0.0; 1000];
    comm.all_reduce(&mine, &mut sum, ReduceOp::Sum)?;
    if comm.rank().0 == 0 {
        println!("{} ranks: every element is {}", comm.size(), sum[0]);
    }
    Ok(())
}
