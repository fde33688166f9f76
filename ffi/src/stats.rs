//! Counters and recorded calls of a communicator.
//!
//! # Safety
//! Arguments are converted by `cast`, which says what that rests on. The only other unsafe act is to export a
//! name.

use crate::{
    boundary::boundary,
    cast::{Versioned, text, write_versioned},
    comm_handle::{find, tbcclComm_t},
    errors::TBCCL_VERSION_CODE,
    failure::Failure,
    numbers::member,
    tbcclResult_t,
};
use std::{
    ffi::{c_char, c_int},
    fs::OpenOptions,
};
use tbccl::{Counters, PollCounters, Stats};

/// Value of a tbcclStats_t's magic.
pub const TBCCL_STATS_MAGIC: u32 = 0x7bcc_0501;

/// Counters of a communicator as this rank, since it was made. Begin with TBCCL_STATS_INITIALIZER.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tbcclStats_t {
    /// Bytes of this structure.
    pub size: usize,
    /// TBCCL_STATS_MAGIC
    pub magic: u32,
    /// TBCCL_VERSION_CODE
    pub version: u32,
    /// Calls begun; each call of a group counts.
    pub begun: u64,
    /// Calls carried out.
    pub finished: u64,
    /// Messages handed over for sending.
    pub sentMessages: u64,
    /// Messages received completely.
    pub receivedMessages: u64,
    /// Bytes that arrived here.
    pub movedBytes: u64,
    /// Bytes that this rank copied, beside moving them.
    pub copiedBytes: u64,
    /// Messages and pieces that were lost or damaged, and sent again.
    pub repeated: u64,
    /// Connections that were replaced.
    pub renewed: u64,
    /// Requests that a device refused although it had announced room.
    pub refused: u64,
    /// Polls of completion queues.
    pub polls: u64,
    /// Polls that found no completion.
    pub emptyPolls: u64,
    /// Polls that found 1, 2, ..., 16 or more completions.
    pub pollBatches: [u64; 16],
    /// Most completions that were pending at a time.
    pub depthHighWater: u64,
    /// Asynchronous events of devices.
    pub asyncEvents: u64,
    /// Sleeps of this rank that its device ended.
    pub wakeUps: u64,
}

// SAFETY: `repr(C)`, begins with the fields of a head, and has numbers only.
unsafe impl Versioned for tbcclStats_t {
    const MAGIC: u32 = TBCCL_STATS_MAGIC;
    const INITIALIZER: &'static str = "TBCCL_STATS_INITIALIZER";
    const MIN_SIZE: usize = 256;
    const UNSET: tbcclStats_t = tbcclStats_t {
        size: size_of::<tbcclStats_t>(),
        magic: TBCCL_STATS_MAGIC,
        version: TBCCL_VERSION_CODE as u32,
        begun: 0,
        finished: 0,
        sentMessages: 0,
        receivedMessages: 0,
        movedBytes: 0,
        copiedBytes: 0,
        repeated: 0,
        renewed: 0,
        refused: 0,
        polls: 0,
        emptyPolls: 0,
        pollBatches: [0; PollCounters::BATCHES],
        depthHighWater: 0,
        asyncEvents: 0,
        wakeUps: 0,
    };
}

impl From<Stats> for tbcclStats_t {
    fn from(stats: Stats) -> tbcclStats_t {
        let (links, polls): (Counters, PollCounters) = (stats.links, stats.polls);
        tbcclStats_t {
            begun: stats.begun,
            finished: stats.finished,
            sentMessages: links.sent_messages,
            receivedMessages: links.received_messages,
            movedBytes: links.moved_bytes,
            copiedBytes: links.copied_bytes,
            repeated: links.retransmissions,
            renewed: links.reconnections,
            refused: links.refused,
            polls: polls.polls,
            emptyPolls: polls.empty_polls,
            pollBatches: polls.batches,
            depthHighWater: polls.depth_high_water,
            asyncEvents: polls.async_events,
            wakeUps: polls.wake_ups,
            ..tbcclStats_t::UNSET
        }
    }
}

/// Tells the counters of a communicator as this rank. Does not wait for calls in progress.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbcclCommStats(comm: tbcclComm_t, stats: *mut tbcclStats_t) -> tbcclResult_t {
    boundary(|| {
        let told = find(comm)?.shared.stats();
        // SAFETY: as `tbccl.h` says, the pointer is null or points to an initialized structure.
        unsafe { write_versioned("stats", stats, &told.into()) }
    })
}

/// Value of a tbcclLinkStats_t's magic.
pub const TBCCL_LINK_STATS_MAGIC: u32 = 0x7bcc_0502;

/// Counters of the links between this rank and a peer. Begin with TBCCL_LINK_STATS_INITIALIZER.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tbcclLinkStats_t {
    /// Bytes of this structure.
    pub size: usize,
    /// TBCCL_LINK_STATS_MAGIC
    pub magic: u32,
    /// TBCCL_VERSION_CODE
    pub version: u32,
    /// Messages handed over for sending.
    pub sentMessages: u64,
    /// Messages received completely.
    pub receivedMessages: u64,
    /// Bytes that arrived here.
    pub movedBytes: u64,
    /// Bytes that this rank copied, beside moving them.
    pub copiedBytes: u64,
    /// Messages and pieces that were lost or damaged, and sent again.
    pub repeated: u64,
    /// Connections that were replaced.
    pub renewed: u64,
    /// Requests that a device refused although it had announced room.
    pub refused: u64,
}

// SAFETY: `repr(C)`, begins with the fields of a head, and has numbers only.
unsafe impl Versioned for tbcclLinkStats_t {
    const MAGIC: u32 = TBCCL_LINK_STATS_MAGIC;
    const INITIALIZER: &'static str = "TBCCL_LINK_STATS_INITIALIZER";
    const MIN_SIZE: usize = 72;
    const UNSET: tbcclLinkStats_t = tbcclLinkStats_t {
        size: size_of::<tbcclLinkStats_t>(),
        magic: TBCCL_LINK_STATS_MAGIC,
        version: TBCCL_VERSION_CODE as u32,
        sentMessages: 0,
        receivedMessages: 0,
        movedBytes: 0,
        copiedBytes: 0,
        repeated: 0,
        renewed: 0,
        refused: 0,
    };
}

impl From<Counters> for tbcclLinkStats_t {
    fn from(links: Counters) -> tbcclLinkStats_t {
        tbcclLinkStats_t {
            sentMessages: links.sent_messages,
            receivedMessages: links.received_messages,
            movedBytes: links.moved_bytes,
            copiedBytes: links.copied_bytes,
            repeated: links.retransmissions,
            renewed: links.reconnections,
            refused: links.refused,
            ..tbcclLinkStats_t::UNSET
        }
    }
}

/// Tells the counters of the links between this rank and a peer: zeros where there is no link, as to the rank
/// itself. Does not wait for calls in progress.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbcclCommLinkStats(
    comm: tbcclComm_t,
    peer: c_int,
    stats: *mut tbcclLinkStats_t,
) -> tbcclResult_t {
    boundary(|| {
        let found = find(comm)?;
        let peer = member("peer", peer, found.at())?;
        let told = found.shared.stats().peers.into_iter().find(|(of, _)| *of == peer);
        let counters = told.map(|(_, counters)| counters).unwrap_or_default();
        // SAFETY: as `tbccl.h` says, the pointer is null or points to an initialized structure.
        unsafe { write_versioned("stats", stats, &counters.into()) }
    })
}

/// Appends the last calls of this rank to a file, one a line as JSON; NULL writes to the standard error
/// output. Does not wait for calls in progress, and tells how far they are.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbcclCommDump(comm: tbcclComm_t, path: *const c_char) -> tbcclResult_t {
    boundary(|| {
        let found = find(comm)?;
        // SAFETY: as `tbccl.h` says, it is null or a text.
        let path = unsafe { text("path", path)? };
        let shared = &found.shared;
        let (written, name) = match path {
            None => (shared.dump(&mut std::io::stderr().lock()), "stderr"),
            Some(path) => {
                let opened = OpenOptions::new().append(true).create(true).open(path);
                (opened.and_then(|mut file| shared.dump(&mut file)), path)
            }
        };
        written.map_err(|error| Failure::system(format!("{name}: {error}")))
    })
}
