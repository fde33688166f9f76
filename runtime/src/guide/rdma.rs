//! RDMA: choosing cables and devices, memory that moves without a copy, and counters.
//!
//! # Switching it on
//!
//! | system | what to do |
//! |---|---|
//! | Macs with Thunderbolt 5, macOS 26.2 | `rdma_ctl enable` in Recovery, once; an IPv4 address per port |
//! | Linux | install libibverbs and the driver of the device |
//!
//! `tbccl doctor` names faults and the commands that mend them; `tbccl selftest` tests all that this library
//! relies on. No machine with a device is needed to try a program: `tbccl fabric run` runs it on devices in
//! software.
//!
//! # Choosing the transport
//!
//! By itself a job uses shared memory within a host, and RDMA between hosts if devices connect all of them,
//! and TCP if not. [`Config`](crate::Config) or the variable `TBCCL_TRANSPORT` decides otherwise:
//!
//! ```
//! use tbccl::{Config, Transport};
//!
//! let config = Config { transport: Transport::MixedVerbs, ..Config::default() };
//! assert_eq!(config.transport.name(), "shm+verbs");
//! ```
//!
//! A file with the devices between each two ranks, as JACCL's programs have it, names the cables
//! (`TBCCL_IBV_DEVICES`):
//!
//! ```
//! use tbccl::{DeviceMatrix, Rank};
//!
//! let matrix = DeviceMatrix::parse(r#"[[null, "rdma_en2"], ["rdma_en3", null]]"#).expect("a matrix");
//! assert_eq!(matrix.rails(Rank(0), Rank(1)), ["rdma_en2"]);
//! ```
//!
//! Several cables between two machines are all used. A cable that is unplugged during a call is taken out of
//! use, and is used again once it is plugged in.
//!
//! # Without a copy
//!
//! Memory of [`Communicator::alloc`](crate::Communicator::alloc) is known to all devices. A program's own
//! memory is after [`Communicator::register`](crate::Communicator::register). Counters prove that nothing was
//! copied:
//!
//! ```no_run
//! # use tbccl::{Communicator, ReduceOp};
//! # let mut comm = Communicator::from_env()?;
//! let mut gradients = comm.alloc::<f32>(1 << 24)?;
//! let before = comm.counters();
//! comm.all_reduce_in_place(&mut gradients, ReduceOp::Sum)?;
//! let after = comm.counters();
//! println!("{} bytes copied", after.copied_bytes - before.copied_bytes);
//! # Ok::<(), tbccl::Error>(())
//! ```
//!
//! # Waiting
//!
//! A rank polls its completion queues. Where a device has events, a long wait sleeps on them
//! (`TBCCL_POLL_EVENTS`); [`Communicator::poll_counters`](crate::Communicator::poll_counters) tells how waits
//! were spent.
