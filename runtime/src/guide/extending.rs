//! A new algorithm, and a new transport.
//!
//! # An algorithm
//!
//! A planner is a function of a [`Spec`](collectives::Spec): the collective, the number of ranks, the root.
//! It adds the steps of each rank to a [`Builder`](collectives::builder::Builder), which derives their
//! dependencies. No sizes and no addresses appear: they are bound when a call executes the schedule.
//!
//! This one broadcasts down a chain. Rank 0 copies its input, and each rank passes the block on:
//!
//! ```
//! use collectives::{
//!     Collective, PlanError, Rank, Schedule, Spec,
//!     builder::Builder,
//!     schedule::ChunkRange,
//!     verify::{Credits, verify},
//! };
//!
//! fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
//!     let mut builder = Builder::new(spec, "my_chain", 1, 0);
//!     let last = spec.ranks() - 1;
//!     for rank in spec.planned_ranks() {
//!         builder.stage(rank.0);
//!         let source = if rank.0 == 0 {
//!             builder.copy(rank, ChunkRange::input(0), ChunkRange::output(0));
//!             ChunkRange::input(0)
//!         } else {
//!             builder.recv(rank, Rank(rank.0 - 1), ChunkRange::output(0), 0);
//!             ChunkRange::output(0)
//!         };
//!         if rank.0 < last {
//!             builder.send(rank, Rank(rank.0 + 1), source, 0);
//!         }
//!     }
//!     builder.finish()
//! }
//!
//! for ranks in 2..=16 {
//!     let schedule = plan(&Spec::new(Collective::Broadcast, ranks)?)?;
//!     // Every output is right, and nothing waits in a circle even if no send completes early.
//!     let report = verify(&schedule, Credits(0)).expect("the schedule is right");
//!     assert_eq!(report.messages, u64::from(ranks) - 1);
//! }
//! # Ok::<(), PlanError>(())
//! ```
//!
//! The same schedule is priced on machines that need not exist:
//!
//! ```
//! use collectives::{
//!     Collective, Spec, plan,
//!     simulate::{Costs, simulate},
//! };
//! use topology::{Cluster, Speed};
//!
//! let schedule = plan::all_reduce::ring::plan(&Spec::new(Collective::AllReduce, 4)?)?;
//! let cables = Cluster::ring(4, Speed::new(5.0, 80.0));
//! let layout = schedule.layout(1 << 20, 4).expect("such buffers can exist");
//! let outcome = simulate(&schedule, &layout, 4, &cables, &Costs::rdma()).expect("it runs");
//! assert!(outcome.makespan > 0.0);
//! # Ok::<(), collectives::PlanError>(())
//! ```
//!
//! To become a choice of users, a planner gets a file of its own below `collectives/src/plan`, and a row in
//! the table of `plan/mod.rs`. Tests then verify it for 1 to 64 ranks and every root, execute it against a
//! naive reference, and compare the plan of each single rank with its part of the whole.
//!
//! # A transport
//!
//! A driver opens a [`Link`](transport::Link) for each pair of ranks and lane: an ordered channel that is
//! polled. It says what it can do in its [`Capabilities`](transport::Capabilities), keeps no borrow of the
//! memory that it works on, and counts the bytes that it copies. This is how the executor drives one, here in
//! the memory of one process:
//!
//! ```
//! use transport::{
//!     Protocol, RecvProgress, RecvState, SendProgress, SendState, Sink, TransportError,
//!     driver::local,
//!     memory::{ArenaLayout, Span, SpanMut},
//!     ring::RingLayout,
//! };
//!
//! /// Memory that a message is copied to.
//! struct Destination<'m>(&'m mut [u8]);
//!
//! impl Sink for Destination<'_> {
//!     fn write(&mut self, offset: usize, data: Span<'_>) {
//!         SpanMut::from(&mut self.0[offset..offset + data.len()]).copy_from(data);
//!     }
//!
//!     fn destination(&mut self) -> Option<SpanMut<'_>> {
//!         Some(SpanMut::from(&mut *self.0))
//!     }
//! }
//!
//! let layout = ArenaLayout { ranks: 2, lanes: 1, ring: RingLayout::default(), slab_bytes: 1 << 20 };
//! let arenas = local::arenas(layout)?;
//! let (mut sender, mut receiver) = (local::link(&arenas, 0, 1, 0), local::link(&arenas, 1, 0, 0));
//!
//! let (message, mut received) = ([7; 100], [0; 100]);
//! let digest = 42; // of the call: a message of another call is an error
//! let mut send = SendState::new(digest, Protocol::Copy);
//! let mut recv = RecvState::new(digest, message.len());
//! let (mut sent, mut arrived) = (false, false);
//! while !(sent && arrived) {
//!     if !sent {
//!         sent = sender.poll_send(&mut send, Span::from(&message[..]))? == SendProgress::Complete;
//!     }
//!     if !arrived {
//!         let progress = receiver.poll_recv(&mut recv, &mut Destination(&mut received))?;
//!         arrived = progress == RecvProgress::Complete;
//!     }
//! }
//! assert_eq!(received, message);
//! # Ok::<(), TransportError>(())
//! ```
//!
//! The steps of a new driver are in ARCHITECTURE.md ("Adding a transport"). Its proof is the conformance
//! suite in `transport/tests/conformance`, which every driver passes: order, lengths, mismatches, credits,
//! dying peers.
