//! The layout of the arenas of a job, by its size and options. All ranks must get the same, but for laps.

use super::{Communicator, staging};
use crate::Config;
use transport::{
    memory::{ArenaLayout, Slab},
    ring::RingLayout,
};

/// Returns the layout of the arenas of a job of `ranks` ranks.
pub(super) fn layout(ranks: u32, config: &Config) -> ArenaLayout {
    ArenaLayout {
        ranks,
        lanes: Communicator::LANES,
        ring: ring(ranks, config),
        slab_bytes: config.slab_bytes.unwrap_or(Config::SLAB_BYTES).next_multiple_of(Slab::BLOCK_BYTES)
            as usize,
    }
}

fn ring(ranks: u32, config: &Config) -> RingLayout {
    let piece_bytes = config.shm.piece_bytes;
    let (staging_bytes, lap_bytes) = match config.shm.staging_bytes {
        Some(bytes) => (bytes, bytes),
        None => {
            // Whole pieces, of which a lap has eight at least.
            let area = staging::area_bytes(ranks).next_multiple_of(piece_bytes).max(8 * piece_bytes);
            (area, staging::lap_bytes(area, ranks).next_multiple_of(piece_bytes).max(8 * piece_bytes))
        }
    };
    let (stores, fetches) = (config.shm.stores, staging::fetches(lap_bytes));
    let buffers = match config.shm.buffers {
        Some(buffers) => buffers as usize,
        None => staging::buffers(staging_bytes, piece_bytes),
    };
    RingLayout { cells: 256, staging_bytes, piece_bytes, buffers, lap_bytes, stores, fetches }
}
