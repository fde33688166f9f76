//! Failures: errors and their remedies, time limits, and going on with fewer ranks.
//!
//! No call waits for ever. A rank that dies, stalls or makes another call becomes an [`Error`](crate::Error)
//! on all other ranks, which names the rank, its host, the call and the step.
//!
//! | error | cause | what helps |
//! |---|---|---|
//! | [`PeerDied`] | a process ended, or its host | [`shrink`] |
//! | [`PeerLeft`] | a rank closed its communicator early | the program |
//! | [`Mismatch`] | ranks made different calls | the program; the message shows both |
//! | [`Timeout`] | no progress within the time limit | `tbccl why`; a longer [`set_timeout`] |
//! | [`Link`] | a cable or a device | `tbccl doctor` |
//!
//! [`PeerDied`]: crate::Error::PeerDied
//! [`PeerLeft`]: crate::Error::PeerLeft
//! [`Mismatch`]: crate::Error::Mismatch
//! [`Timeout`]: crate::Error::Timeout
//! [`Link`]: crate::Error::Link
//! [`shrink`]: crate::Communicator::shrink
//! [`set_timeout`]: crate::Communicator::set_timeout
//!
//! # Mismatches
//!
//! The first message of a call has a digest of the call. Ranks that disagree get an error instead of wrong
//! data:
//!
//! ```
//! use tbccl::{Communicator, Config, Error, ReduceOp};
//!
//! let ranks = Communicator::local(2, &Config::default())?;
//! let threads = ranks.into_iter().map(|mut comm| {
//!     std::thread::spawn(move || {
//!         let op = if comm.rank().0 == 0 { ReduceOp::Sum } else { ReduceOp::Max };
//!         comm.all_reduce_in_place(&mut [1.0f32; 100], op)
//!     })
//! });
//! for thread in threads.collect::<Vec<_>>() {
//!     let error = thread.join().expect("no panic").expect_err("the ranks disagree");
//!     assert!(matches!(error, Error::Mismatch { .. }), "{error}");
//! }
//! # Ok::<(), Error>(())
//! ```
//!
//! A failed call ends its communicator: every later call on any rank gives an error.
//!
//! # Time limits
//!
//! A time limit bounds a wait without progress, not the duration of a call. It is that of the configuration
//! (`TBCCL_TIMEOUT`), of the communicator, or of one call:
//!
//! ```
//! # use tbccl::{Communicator, Config};
//! use std::time::Duration;
//!
//! let config = Config { timeout: Duration::from_secs(5), ..Config::default() };
//! let mut comm = Communicator::local(1, &config)?.remove(0);
//! comm.set_timeout(Duration::from_secs(600));
//! comm.barrier()?;
//! # Ok::<(), tbccl::Error>(())
//! ```
//!
//! # Going on with fewer ranks
//!
//! Under `tbccl run --keep-going` the other ranks can continue. The dead rank's number is in the error:
//!
//! ```no_run
//! # use tbccl::{Communicator, Config, Error, ReduceOp};
//! # let config = Config::default();
//! # let mut comm = Communicator::from_env()?;
//! # let mut gradients = vec![0.0f32; 1000];
//! match comm.all_reduce_in_place(&mut gradients, ReduceOp::Sum) {
//!     Err(Error::PeerDied { peer, .. }) => comm = comm.shrink(&[peer.rank], &config)?,
//!     done => done?,
//! }
//! # Ok::<(), Error>(())
//! ```
//!
//! [`Communicator::grow`](crate::Communicator::grow) adds ranks again.
//!
//! # After the fact
//!
//! Each rank keeps its latest calls. `TBCCL_DUMP` names a folder to which a failing rank writes them;
//! `TBCCL_HANG_REPORT` and `tbccl why` tell what each rank of a hanging job waits for, and
//! [`why`](crate::why) decides what the answers mean.
