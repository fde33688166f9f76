//! The verbs transport of a rank: from options to an endpoint.

use crate::{
    Config, Transport,
    error::{Error, Result},
};
use bootstrap::Identity;
use topology::{DeviceMatrix, Rank};
use transport::driver::{
    Endpoint,
    verbs::{Networks, Notify, VerbsConfig, VerbsEndpoint},
};

/// Creates the endpoint of a rank.
pub(super) fn open(identity: &Identity, config: &Config) -> Result<Box<dyn Endpoint>> {
    debug_assert!(config.transport == Transport::Verbs);
    let (rank, size) = (identity.rank(), identity.size());
    Ok(Box::new(VerbsEndpoint::new(&options(identity, config)?, rank, size, Box::new(say(rank)))))
}

/// Returns a function that prints progress messages of a rank.
pub(super) fn say(rank: u32) -> impl FnMut(&str) + Send {
    move |what| eprintln!("tbccl: rank {rank}: {what}")
}

/// Returns the driver's options. Reads the device matrix, if one is named.
pub(super) fn options(identity: &Identity, config: &Config) -> Result<VerbsConfig> {
    let world_ranks = identity.world_ranks();
    // A single rank, as a split may leave it, has no cable that a matrix could name.
    let path = config.verbs.devices.as_ref().filter(|_| !identity.has_parent() || identity.size() > 1);
    let matrix = path.map(|path| {
        let broken = |why: String| Error::InvalidArgument(format!("{}: {why}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|error| {
            broken(format!("the device matrix can't be read: {error}; set TBCCL_IBV_DEVICES to its path"))
        })?;
        let matrix = DeviceMatrix::parse(&text).map_err(|error| broken(error.to_string()))?;
        matrix.check_size(world_ranks.size()).map_err(|error| broken(error.to_string()))?;
        let row =
            |from: &u32| world_ranks.by_rank().iter().map(|to| (Rank(*from), Rank(*to))).collect::<Vec<_>>();
        Ok::<_, Error>(
            (world_ranks.by_rank().iter())
                .map(|from| row(from).into_iter().map(|(from, to)| matrix.rails(from, to).to_vec()).collect())
                .collect(),
        )
    });
    Ok(VerbsConfig {
        library: config.verbs.library.clone(),
        matrix: matrix.transpose()?,
        slab_bytes: config.slab_bytes,
        segment_bytes: config.verbs.segment_bytes,
        cache_regions: config.verbs.cache_regions,
        cache_bytes: config.verbs.cache_bytes,
        piece_bytes: config.verbs.piece_bytes,
        window: config.verbs.window,
        checksum: config.verbs.checksum,
        reliable: config.verbs.reliable,
        address_timeout: config.timeout,
        poll_batch: config.polling.batch as usize,
        events: config.polling.events,
        event_percent: config.polling.event_percent,
        keep_alive: config.verbs.keep_alive,
        cable_wait: config.verbs.cable_wait,
        notify: Notify(|what| eprintln!("tbccl: {what}")),
        networks: Networks::default(),
    })
}
