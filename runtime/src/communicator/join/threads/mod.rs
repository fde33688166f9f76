//! Joining among threads of one process.

mod rendezvous;

use super::{
    super::{Communicator, Identifier, Parts, arenas::layout, machine::host_name, plans::SharedChoice},
    catch_signal_if_wanted,
};
use crate::{
    Config,
    agreement::Agreement,
    calibration::Thresholds,
    error::{PeerName, Result},
    executor::LinkMaker,
};
pub(in crate::communicator) use rendezvous::ThreadRendezvous;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};
use topology::{Rank, Reach};
use transport::{
    driver::local,
    memory::{Arena, Slab},
};

/// State shared by ranks that are threads of one process.
#[derive(Debug)]
pub(in super::super) struct Threads {
    arenas: Arc<[Arena]>,
    names: Vec<PeerName>,
    plans: Arc<SharedChoice>,
    rendezvous: Arc<ThreadRendezvous>,
    /// Number of the communicator in this process.
    id: u64,
    made_by: String,
}

/// Number of communicators of threads that this process has made, and of their ranks.
static COMMUNICATORS: AtomicU64 = AtomicU64::new(1);
static RANKS: AtomicU64 = AtomicU64::new(1);

impl Threads {
    /// Creates the state of `ranks` threads; `made_by` is the call that makes it from another communicator.
    pub(super) fn new(ranks: u32, made_by: &str, config: &Config) -> Result<Threads> {
        catch_signal_if_wanted(config)?;
        let host = host_name();
        let name = |rank| PeerName { rank: Rank(rank), pid: std::process::id(), host: host.clone() };
        Ok(Threads {
            arenas: local::arenas(layout(ranks, config))?.into(),
            names: (0..ranks).map(name).collect(),
            plans: Arc::default(),
            rendezvous: Arc::default(),
            id: COMMUNICATORS.fetch_add(1, Relaxed),
            made_by: made_by.to_owned(),
        })
    }

    /// Returns the communicator of one thread. To be called once per rank.
    pub(super) fn communicator(&self, rank: u32, config: &Config) -> Communicator {
        let Threads { arenas, names, plans, rendezvous, id, made_by } = self;
        let parts = Parts {
            rank: Rank(rank),
            names: names.clone(),
            agreement: Agreement::new(Rank(rank), arenas.iter().map(Arena::board).collect()),
            slab: Slab::new(&arenas[rank as usize], None),
            links: (0..names.len() * usize::from(Communicator::LANES)).map(|_| None).collect(),
            reach: Reach::complete(),
            schedule_reach: Reach::complete(),
            connection: None,
            endpoint: None,
            transport: "local",
            rejoin: Arc::clone(rendezvous).into(),
            rendezvous_rank: None,
            is_first: true,
            thresholds: Thresholds::DEFAULT,
            identifier: Identifier { id: *id, made_by: made_by.clone(), place: RANKS.fetch_add(1, Relaxed) },
        };
        let mut communicator = Communicator::assemble(parts, config);
        communicator.plans.share_choice(plans);
        communicator.executor.set_link_maker(local_links(rank, arenas));
        communicator
    }
}

/// Returns a function that makes the links of a rank on demand: in a large job, each rank communicates with
/// few others.
fn local_links(rank: u32, arenas: &Arc<[Arena]>) -> LinkMaker {
    let arenas = Arc::clone(arenas);
    let lanes = usize::from(Communicator::LANES);
    Box::new(move |index| local::link(&arenas, rank, (index / lanes) as u32, (index % lanes) as u8))
}
