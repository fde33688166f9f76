//! Probes of memory: placed pieces, late registration, 4 GiB lines, shared pages.

use super::{
    Pair, SHORT_BYTES,
    end::{End, LINE, Side, no_memory, success},
    messages::{intact, said},
};
use crate::commands::selftest::{
    finding::{Finding, Probed, Trouble, broken},
    message::step,
};
use std::{
    thread,
    time::{Duration, Instant},
};
use transport::memory::Mapping;

/// Bytes of a piece, and of a trailer.
const PIECE: usize = 128 << 10;
const TRAILER: usize = 80;
/// Pieces in flight.
const WINDOW: u64 = 8;
/// Bytes of a piece's place, with that of its trailer.
const PLACE: usize = PIECE + SHORT_BYTES;

/// Streams pieces with trailers in both directions at a time.
pub(super) fn pieces(pair: &mut Pair<'_>, says: bool) -> Probed {
    let count: u64 = if pair.quick { 24 } else { 128 };
    let entries = u64::from(pair.device.entries(PIECE) + 1);
    let depth = (WINDOW * entries) as u32;
    // The first half of the memory is received into, the second half is sent from.
    let mut end = pair.connected(2 * WINDOW as usize * PLACE, &[(depth, depth)])?;
    let mine = u64::from(pair.peer().0) << 32;
    let theirs = (1 << 32) - mine;
    step("posting the receives of pieces");
    for piece in 0..WINDOW.min(count) {
        post_piece(&end, piece)?;
    }
    pair.meet()?;
    step("exchanging pieces in both directions");
    let began = Instant::now();
    let (mut sent, mut left, mut received, mut last) = (0, 0, 0, Instant::now());
    while left < 2 * count || received < 2 * count {
        if sent < count && 2 * sent - left < 2 * WINDOW - 1 {
            let at = (WINDOW + sent % WINDOW) as usize * PLACE;
            end.fill(at, PIECE, mine + sent);
            end.fill(at + PIECE, TRAILER, mine + sent);
            end.send(0, 2 * sent, end.run(at, PIECE))?;
            end.send(0, 2 * sent + 1, end.run(at + PIECE, TRAILER))?;
            sent += 1;
        }
        for completion in end.poll(Side::Sends)? {
            success(completion, "a piece that is sent")?;
            (left, last) = (left + 1, Instant::now());
        }
        for completion in end.poll(Side::Receives)? {
            let completion = success(completion, "a piece that is received")?;
            if completion.id != received {
                return Err(broken(format!("receive {} completed before {received}", completion.id)));
            }
            (received, last) = (received + 1, Instant::now());
            if received.is_multiple_of(2) {
                take_piece(&end, received / 2 - 1, theirs)?;
                let next = received / 2 - 1 + WINDOW;
                if next < count {
                    post_piece(&end, next)?;
                }
            }
        }
        if last.elapsed() > end.patience {
            let text = format!(
                "nothing moves any more: {} of {count} pieces sent, {} received; TBCCL_RDMA_WINDOW=2 may do",
                left / 2,
                received / 2
            );
            return Err(broken(text));
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    pair.meet()?;
    Ok(said(says, || format!("{count} pieces in each direction in {:.1} ms", seconds * 1e3)))
}

/// Posts the receives of a piece and of its trailer.
fn post_piece(end: &End, piece: u64) -> Result<(), Trouble> {
    let at = (piece % WINDOW) as usize * PLACE;
    end.receive(0, 2 * piece, end.run(at, PIECE))?;
    Ok(end.receive(0, 2 * piece + 1, end.run(at + PIECE, SHORT_BYTES))?)
}

/// Checks a piece that has arrived with its trailer.
fn take_piece(end: &End, piece: u64, seed: u64) -> Result<(), Trouble> {
    let at = (piece % WINDOW) as usize * PLACE;
    intact(end, at, (PIECE, seed + piece), &format!("piece {piece}"))?;
    intact(end, at + PIECE, (TRAILER, seed + piece), &format!("the trailer of piece {piece}"))
}

/// Receives into memory that is registered after the connection was made. Devices that count in frames are
/// not asked to, so their answer is only noted.
pub(super) fn late_registration(pair: &mut Pair<'_>, sends: bool) -> Probed {
    let is_relied_on = pair.device.capabilities.late_registration;
    let mut end = pair.connected(SHORT_BYTES, &[(16, 16)])?;
    step("registering memory after the connection was made");
    let late = End::new(&pair.device, SHORT_BYTES, &[])?;
    let run = late.run(0, if sends { 1000 } else { SHORT_BYTES });
    let subject = "a message in memory that was registered after the connection";
    let exchange = |pair: &mut Pair<'_>, end: &mut End| {
        if sends {
            late.fill(0, 1000, 4);
            pair.meet()?;
            end.send(0, 1, run)?;
            end.wait(Side::Sends, 1, subject).map(|_| ())
        } else {
            let posted = end.receive(0, 1, run);
            pair.meet()?;
            posted?;
            end.wait(Side::Receives, 1, subject)?;
            intact(&late, 0, (1000, 4), subject)
        }
    };
    if !is_relied_on {
        end.patience = Duration::from_millis(500);
    }
    let result = exchange(pair, &mut end);
    // The queue pair ends before the memory that its work is in.
    drop(end);
    let side = if sends { "sending" } else { "receiving" };
    let found = match result {
        Ok(()) => format!("{side}: usable").into(),
        Err(Trouble::Fail(text, _)) if !is_relied_on => Finding {
            text: format!("{side}: not usable, as is expected of devices that count in frames"),
            details: vec![format!("{side}: {text}")],
        },
        Err(other) => return Err(other),
    };
    pair.meet()?;
    Ok(found)
}

/// Sends from, and receives into, memory on both sides of a 4 GiB line.
pub(super) fn line(pair: &mut Pair<'_>, sends: bool) -> Probed {
    const BYTES: usize = 64 << 10;
    for is_before in [true, false] {
        let place = if is_before { "ends" } else { "begins" };
        step(format!("registering memory that {place} at a 4 GiB line"));
        let memory = Mapping::private(LINE as usize + 4 * BYTES).map_err(|error| no_memory(&error))?;
        let first = memory.as_ptr() as usize;
        let to_line = (first + BYTES).next_multiple_of(LINE as usize) - first;
        let base = if is_before { to_line - BYTES } else { to_line };
        if base + BYTES > memory.len() {
            let text = "no memory at a 4 GiB line".to_owned();
            return Err(Trouble::Unknown(text, "run the test again".to_owned()));
        }
        let end = End::over(&pair.device, (memory, base, BYTES), &[(64, 64)], false)?;
        exchange(pair, end, (BYTES, sends), &format!("a message in memory that {place} at a 4 GiB line"))?;
    }
    Ok(said(sends, || "64 KiB before a line, and 64 KiB after it".to_owned()))
}

/// Sends from, and receives into, pages that other processes could map.
pub(super) fn shared(pair: &mut Pair<'_>, sends: bool) -> Probed {
    const BYTES: usize = 1 << 20;
    step("registering shared pages");
    let (memory, _fd) = Mapping::shared_for_device(BYTES, 0, LINE).map_err(|error| no_memory(&error))?;
    let end = End::over(&pair.device, (memory, 0, BYTES), &[(264, 264)], false)?;
    exchange(pair, end, (PIECE, sends), "a message in shared pages")?;
    Ok(said(sends, || format!("{} KiB", PIECE >> 10)))
}

/// Connects an end and sends a message through it.
fn exchange(
    pair: &mut Pair<'_>,
    mut end: End,
    (bytes, sends): (usize, bool),
    subject: &str,
) -> Result<(), Trouble> {
    pair.connect(&end)?;
    if sends {
        end.fill(0, bytes, 11);
        pair.meet()?;
        end.send(0, 1, end.run(0, bytes))?;
        end.wait(Side::Sends, 1, subject)?;
    } else {
        end.receive(0, 1, end.run(0, bytes))?;
        pair.meet()?;
        end.wait(Side::Receives, 1, subject)?;
        intact(&end, 0, (bytes, 11), subject)?;
    }
    thread::yield_now();
    pair.meet()
}
