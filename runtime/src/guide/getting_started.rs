//! First steps: joining a job, calls, memory, groups, and calls in the background.
//!
//! # Joining a job
//!
//! A rank is a process, or a thread, with a number. Processes that a launcher has started join by
//! [`Communicator::from_env`](crate::Communicator::from_env):
//!
//! ```no_run
//! use tbccl::{Communicator, ReduceOp};
//!
//! // tbccl run -n 4 -- target/release/program
//! let mut comm = Communicator::from_env()?;
//! let mut gradients = vec![comm.rank().0 as f32; 1000];
//! comm.all_reduce_in_place(&mut gradients, ReduceOp::Avg)?;
//! # Ok::<(), tbccl::Error>(())
//! ```
//!
//! torchrun, Open MPI, MPICH and Slurm start such a program as well. Ranks that no launcher has started meet
//! by a [`UniqueId`](crate::UniqueId), which one of them creates and the program passes on.
//!
//! # Ranks that are threads
//!
//! The examples of this guide run in one process. Each communicator belongs to the thread that calls it:
//!
//! ```
//! use tbccl::{Communicator, Config, ReduceOp};
//!
//! let ranks = Communicator::local(4, &Config::default())?;
//! let threads = ranks.into_iter().map(|mut comm| {
//!     std::thread::spawn(move || -> tbccl::Result<f32> {
//!         let mine = vec![comm.rank().0 as f32; 1000];
//!         let mut sum = vec![0.0; 1000];
//!         comm.all_reduce(&mine, &mut sum, ReduceOp::Sum)?;
//!         Ok(sum[999])
//!     })
//! });
//! for thread in threads.collect::<Vec<_>>() {
//!     assert_eq!(thread.join().expect("no panic")?, 0.0 + 1.0 + 2.0 + 3.0);
//! }
//! # Ok::<(), tbccl::Error>(())
//! ```
//!
//! All ranks make the same calls in the same order, with equal counts, types and operations. A rank that
//! differs gets an error that shows both sides ([`failures`](super::failures)).
//!
//! # Memory
//!
//! A call takes slices. Memory from [`Communicator::alloc`](crate::Communicator::alloc) is registered: peers
//! read it in place, and RDMA devices send from it, so nothing is copied on the way. It is a slice, too:
//!
//! ```
//! # use tbccl::{Communicator, Config, ReduceOp};
//! # let mut comm = Communicator::local(1, &Config::default())?.remove(0);
//! let mut weights = comm.alloc::<f32>(1 << 16)?;
//! weights.fill(0.5);
//! comm.all_reduce_in_place(&mut weights, ReduceOp::Sum)?;
//! assert_eq!(weights[0], 0.5 * comm.size() as f32);
//! # Ok::<(), tbccl::Error>(())
//! ```
//!
//! # Groups
//!
//! [`Communicator::split`](crate::Communicator::split) makes communicators of the ranks with equal colors, as
//! rows and columns of a grid:
//!
//! ```
//! # use tbccl::{Communicator, Config};
//! # let config = Config::default();
//! # let threads = Communicator::local(4, &config)?.into_iter().map(|mut comm| {
//! #     let config = config.clone();
//! #     std::thread::spawn(move || -> tbccl::Result<()> {
//! let row = comm.rank().0 / 2;
//! let rows = comm.split(Some(row), 0, &config)?.expect("a rank with a color is in a group");
//! assert_eq!((rows.size(), rows.rank().0), (2, comm.rank().0 % 2));
//! #         Ok(())
//! #     })
//! # });
//! # for thread in threads.collect::<Vec<_>>() {
//! #     thread.join().expect("no panic")?;
//! # }
//! # Ok::<(), tbccl::Error>(())
//! ```
//!
//! # Calls in the background
//!
//! [`SharedCommunicator`](crate::SharedCommunicator) takes calls of any thread, in the order of their issue,
//! and carries them out on a thread of its own. [`P2p`](crate::P2p) sends tagged messages beside collectives.
