//! Bytes that go astray: memory that crosses a 4 GiB line on a device that keeps 32 bits of an address.
//!
//! Such a device adds the low half of an address to the upper half of where its region begins, so what lies beyond
//! the line is written, and read, exactly 4 GiB lower (or a multiple of it). When registered memory of the same
//! device is there, it is corrupted, as by the real one. When there is none, the bytes are lost, or read as
//! zeroes: a program here must not be damaged where the real one's would have been protected by its adapter's
//! tables. Either way the device says so in its log, once for each registration.
//!
//! # Safety
//! See `copy`. Strayed bytes go only to memory that is registered, and is marked meanwhile like any other.

use super::{
    Nic,
    copy::{Cursor, Fault, List, copy},
    region::{Denied, Mark, Need, Place},
};
use crate::{
    log,
    shm::{MRS, MrRecord, Sge, View},
};
use std::sync::atomic::Ordering::Relaxed;

/// From here on a device that keeps 32 bits of addresses goes wrong.
const LINE: u64 = 1 << 32;

/// How many bytes are in one piece, and where; `None` when nothing is registered there.
type Aim<'a> = (usize, Option<(Place, Mark<'a>)>);

/// Does this access leave the 4 GiB in which its region begins?
#[inline]
pub(super) fn strays(mr: &MrRecord, start: u64, len: usize) -> bool {
    mr.wraps.load(Relaxed) != 0 && (start.wrapping_add(len as u64).wrapping_sub(1) ^ base(mr)) >= LINE
}

/// Where the 4 GiB begin that a region begins in.
fn base(mr: &MrRecord) -> u64 {
    mr.address.load(Relaxed) & !(LINE - 1)
}

impl Nic {
    /// Moves the next bytes, at most `len`, to and from where they really go, and returns how many. It is an
    /// error of the source or the destination when they may not be moved at all.
    #[cold]
    pub(super) fn move_astray<'a>(
        &'a self,
        from: &mut Cursor<'a>,
        to: &mut Cursor<'a>,
        len: usize,
    ) -> Result<usize, Fault> {
        let (len, source) = self.aim(from, len).map_err(|Denied| Fault::Source)?;
        let (len, destination) = self.aim(to, len).map_err(|Denied| Fault::Destination)?;
        match (source, destination) {
            (Some((source, _from)), Some((destination, _to))) => copy(destination, source, len)?,
            (None, Some((destination, _to))) => {
                let mut zeroes = vec![0u8; len];
                copy(destination, Place::Here(zeroes.as_mut_ptr()), len)?;
            }
            (_, None) => {}
        }
        from.skip(len);
        to.skip(len);
        Ok(len)
    }

    /// Where the next bytes of a list really are.
    #[cold]
    pub(super) fn aim<'a>(&'a self, cursor: &Cursor<'a>, len: usize) -> Result<Aim<'a>, Denied> {
        let piece = cursor.next_piece().ok_or(Denied)?;
        match cursor.list() {
            List::Plain { .. } => Ok((len, Some((Place::Here(piece.addr as *mut u8), Mark::none())))),
            List::Pieces { need, .. } => self.aim_piece(need, piece, len),
        }
    }

    fn aim_piece<'a>(&'a self, need: &Need<'a>, piece: Sge, len: usize) -> Result<Aim<'a>, Denied> {
        let (mr, offset) = need.check(piece.lkey, piece.addr, len as u64)?;
        let start = mr.address.load(Relaxed).wrapping_add(offset);
        let len = len.min((LINE - start % LINE) as usize);
        if !strays(mr, start, len) {
            let (place, mark) = self.locate(need, piece.lkey, piece.addr, len)?;
            return Ok((len, Some((place, mark))));
        }
        let wrong = base(mr) | (start % LINE);
        let (len, hit) = self.registered(need.view, mr.port.load(Relaxed), wrong, len);
        if mr.wraps.swap(2, Relaxed) != 2 {
            let fate =
                if hit.is_some() { "are" } else { "would be, where nothing is registered: they are lost" };
            let pid = need.view.pid;
            log::warn(format_args!("bytes at {start:#x} of process {pid} {fate} at {wrong:#x}, 4 GiB lower"));
        }
        Ok((len, hit))
    }

    /// Registered memory of a device at an address, whichever registration it is of; else how many bytes it is
    /// to the next.
    fn registered<'a>(&'a self, view: &'a View, port: u32, address: u64, len: usize) -> Aim<'a> {
        let mut free = len as u64;
        for mr in (0..MRS).filter_map(|index| view.mr(index)) {
            let key = mr.key.load(Relaxed);
            let (start, bytes) = (mr.address.load(Relaxed), mr.len.load(Relaxed));
            if key == 0 || mr.port.load(Relaxed) != port {
                continue;
            }
            match address.checked_sub(start) {
                Some(offset) if offset < bytes => {
                    let len = free.min(bytes - offset) as usize;
                    if let Ok(found) = self.locate_within(view, key, offset, len) {
                        return (len, Some(found));
                    }
                }
                None => free = free.min(start - address),
                Some(_) => {}
            }
        }
        (free as usize, None)
    }
}
