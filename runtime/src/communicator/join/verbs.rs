//! The verbs transport of a rank: from options to an endpoint.

use crate::{
    Config, Transport,
    error::{Error, Result},
};
use bootstrap::Identity;
use events::{notice, target};
use std::borrow::Cow;
use topology::{DeviceMatrix, Rank};
use transport::{
    driver::{
        Endpoint,
        verbs::{Networks, Notify, VerbsConfig, VerbsEndpoint},
    },
    verbs::PacketClass,
};

/// Creates the endpoint of a rank.
pub(super) fn open(identity: &Identity, config: &Config) -> Result<Box<dyn Endpoint>> {
    debug_assert!(config.transport == Transport::Verbs);
    let (rank, size) = (identity.rank(), identity.size());
    Ok(Box::new(VerbsEndpoint::new(&options(identity, config)?, rank, size, Box::new(say(rank)))))
}

/// Returns a function that shows progress messages of a rank.
pub(super) fn say(rank: u32) -> impl FnMut(&str) + Send {
    move |message| notice!(target::VERBS, Some(rank), "{message}")
}

/// Returns the driver's options. Reads the device matrix, if one is named.
pub(super) fn options(identity: &Identity, config: &Config) -> Result<VerbsConfig> {
    let world_ranks = identity.world_ranks();
    // A single rank, as a split may leave it, has no cable that a matrix could name.
    let has_cables = !identity.has_parent() || identity.size() > 1;
    let matrix = if has_cables { matrix(config, world_ranks.size())? } else { None };
    let rows = matrix.map(|matrix| {
        let row = |from: u32| {
            let others = world_ranks.by_rank().iter();
            others.map(|to| matrix.rails(Rank(from), Rank(*to)).to_vec()).collect()
        };
        world_ranks.by_rank().iter().map(|from| row(*from)).collect()
    });
    Ok(VerbsConfig {
        library: config.verbs.library.clone(),
        matrix: rows,
        slab_bytes: config.slab_bytes,
        segment_bytes: config.verbs.segment_bytes,
        cache_regions: config.verbs.cache_regions,
        cache_bytes: config.verbs.cache_bytes,
        piece_bytes: config.verbs.piece_bytes,
        window: config.verbs.window,
        checksum: config.verbs.checksum,
        reliable: config.verbs.reliable,
        devices: config.verbs.selection.clone(),
        gid_index: config.verbs.gid_index,
        class: PacketClass {
            service_level: config.verbs.service_level,
            traffic_class: config.verbs.traffic_class,
        },
        address_timeout: config.timeout,
        accepts_link_local: true,
        poll_batch: config.polling.batch as usize,
        events: config.polling.events,
        event_percent: config.polling.event_percent,
        keep_alive: config.verbs.keep_alive,
        cable_wait: config.verbs.cable_wait,
        notify: Notify(|message| notice!(target::VERBS, None, "{message}")),
        networks: Networks::default(),
        ..VerbsConfig::default()
    })
}

/// Returns the device matrix of a first job of `ranks` ranks: the one that the program names, or that of the
/// file.
fn matrix(config: &Config, ranks: u32) -> Result<Option<Cow<'_, DeviceMatrix>>> {
    if let Some(matrix) = config.verbs.named.matrix() {
        matrix.check_size(ranks).map_err(|error| Error::InvalidArgument(error.to_string()))?;
        return Ok(Some(Cow::Borrowed(matrix)));
    }
    let Some(path) = &config.verbs.devices else { return Ok(None) };
    let broken = |why: String| Error::InvalidArgument(format!("{}: {why}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| {
        broken(format!("the device matrix can't be read: {error}; set TBCCL_IBV_DEVICES to its path"))
    })?;
    let matrix = DeviceMatrix::parse(&text).map_err(|error| broken(error.to_string()))?;
    matrix.check_size(ranks).map_err(|error| broken(error.to_string()))?;
    Ok(Some(Cow::Owned(matrix)))
}
