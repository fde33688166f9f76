//! Moves bytes between lists of pieces of memory, of this process and of a peer.
//!
//! Bytes of a device that keeps 32 bits of an address go to a wrong address beyond a 4 GiB line; see
//! [`wraparound`](super::wraparound). If memory of the same device is registered there, it is corrupted, as
//! by the real device. Otherwise the bytes are lost, or read as zeros: the real device's tables would protect
//! the program, and so must this one. In both cases the device logs the fact, once for each registration.
//!
//! # Safety
//! Every address was found by [`Regions::locate`] for as many bytes as are copied, and is marked as in use
//! meanwhile; or it is within a ring's slot, whose lock is held. Wrapped bytes go only to memory that is
//! registered and marked.

use super::{
    copy::{Location, TransferError, copy},
    region::{Access, Denied, RegionGuard, Regions},
    sge_list::{Cursor, SgeList},
    wraparound::{LINE, wrapped, wraps},
};
use crate::{
    log,
    shm::{MRS, Process, Sge, View},
};
use std::sync::atomic::Ordering::Relaxed;

/// The length of a run of bytes, and its location; `None` if nothing is registered there.
type Target<'a> = (usize, Option<(Location, RegionGuard<'a>)>);

/// Moves bytes in the name of a process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transfer<'a> {
    regions: Regions<'a>,
}

impl<'a> Transfer<'a> {
    #[inline]
    pub(super) fn new(process: &'a Process) -> Transfer<'a> {
        Transfer { regions: Regions::new(process) }
    }

    /// Moves `len` bytes from one cursor to another.
    #[inline]
    pub(super) fn run(
        self,
        from: &mut Cursor<'a>,
        to: &mut Cursor<'a>,
        mut len: usize,
    ) -> Result<(), TransferError> {
        while len > 0 {
            let source_bytes = from.remaining().ok_or(TransferError::Source)?;
            let chunk = len.min(source_bytes).min(to.remaining().ok_or(TransferError::Destination)?);
            if let Ok((source, _source_guard)) = self.locate(from, chunk)
                && let Ok((destination, _guard)) = self.locate(to, chunk)
            {
                copy(destination, source, chunk)?;
                from.skip(chunk);
                to.skip(chunk);
                len -= chunk;
            } else {
                len -= self.move_wrapped(from, to, chunk)?;
            }
        }
        self.check_source(from)
    }

    /// Finds the next `len` bytes of a list, which are in one element.
    #[inline]
    fn locate(self, cursor: &Cursor<'a>, len: usize) -> Result<(Location, RegionGuard<'a>), Denied> {
        let element = cursor.rest().ok_or(Denied)?;
        match cursor.list() {
            SgeList::Local { .. } => Ok((Location::Mapped(element.addr as *mut u8), RegionGuard::none())),
            SgeList::Registered { access, .. } => {
                self.regions.locate(access, element.lkey, element.addr, len)
            }
        }
    }

    /// Checks that the bytes that were read were those of a living process.
    ///
    /// Pages that a dead process has shared are released, and read as zeros from then on. Its file says that
    /// it is released before any page is.
    #[inline]
    fn check_source(self, from: &Cursor<'_>) -> Result<(), TransferError> {
        match from.list() {
            SgeList::Registered { access, .. }
                if !self.regions.is_own(access.view) && access.view.is_released() =>
            {
                Err(TransferError::PeerGone)
            }
            _ => Ok(()),
        }
    }

    /// Flips one bit of a list: bit `bit` after the first `skip` bytes.
    #[cold]
    pub(super) fn flip_bit(self, list: SgeList<'a>, skip: usize, bit: u64) -> Result<(), TransferError> {
        let mut cursor = list.cursor();
        let mut skip = skip + (bit / 8) as usize;
        loop {
            let remaining = cursor.remaining().ok_or(TransferError::Destination)?;
            cursor.skip(skip.min(remaining));
            if skip < remaining {
                break;
            }
            skip -= remaining;
        }
        let (_, target) = self.resolve(&cursor, 1).map_err(|Denied| TransferError::Destination)?;
        let Some((location, _guard)) = target else { return Ok(()) };
        let mut byte = 0u8;
        copy(Location::Mapped(&raw mut byte), location, 1)?;
        byte ^= 1 << (bit % 8);
        copy(location, Location::Mapped(&raw mut byte), 1)
    }

    /// Moves at most `len` bytes to and from the addresses that the device really accesses. Returns their
    /// number.
    ///
    /// The error names the side on which the access is not permitted at all.
    #[cold]
    fn move_wrapped(
        self,
        from: &mut Cursor<'a>,
        to: &mut Cursor<'a>,
        len: usize,
    ) -> Result<usize, TransferError> {
        let (len, source) = self.resolve(from, len).map_err(|Denied| TransferError::Source)?;
        let (len, destination) = self.resolve(to, len).map_err(|Denied| TransferError::Destination)?;
        match (source, destination) {
            (Some((source, _from)), Some((destination, _to))) => copy(destination, source, len)?,
            (None, Some((destination, _to))) => {
                let mut zeros = vec![0u8; len];
                copy(destination, Location::Mapped(zeros.as_mut_ptr()), len)?;
            }
            (_, None) => {}
        }
        from.skip(len);
        to.skip(len);
        Ok(len)
    }

    /// Returns the target of the next bytes of a list.
    #[cold]
    fn resolve(self, cursor: &Cursor<'a>, len: usize) -> Result<Target<'a>, Denied> {
        let element = cursor.rest().ok_or(Denied)?;
        match cursor.list() {
            SgeList::Local { .. } => {
                Ok((len, Some((Location::Mapped(element.addr as *mut u8), RegionGuard::none()))))
            }
            SgeList::Registered { access, .. } => self.resolve_element(access, element, len),
        }
    }

    fn resolve_element(self, access: &Access<'a>, element: Sge, len: usize) -> Result<Target<'a>, Denied> {
        let (mr, offset) = access.check(element.lkey, element.addr, len as u64)?;
        let start = mr.address.load(Relaxed).wrapping_add(offset);
        let len = len.min((LINE - start % LINE) as usize);
        if !wraps(mr, start, len) {
            let found = self.regions.locate(access, element.lkey, element.addr, len)?;
            return Ok((len, Some(found)));
        }
        let wrong = wrapped(mr, start);
        let (len, target) = self.find_registered(access.view, mr.port.load(Relaxed), wrong, len);
        if mr.wraps.swap(2, Relaxed) != 2 {
            let pid = access.view.pid;
            let fate = match target {
                Some(_) => "go to",
                None => "wrap around, and they are lost because nothing is registered at",
            };
            log::warn(format_args!("bytes at {start:#x} of process {pid} {fate} {wrong:#x}, 4 GiB lower"));
        }
        Ok((len, target))
    }

    /// Finds memory of any registration of a device at an address. Without one, the length is that of the gap
    /// before the next registration, at most `len`.
    fn find_registered(self, view: &'a View, port: u32, address: u64, len: usize) -> Target<'a> {
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
                    if let Ok(found) = self.regions.locate_within(view, key, offset, len) {
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{super::member::tests::open, *};
    use std::ptr;

    fn process(folder: &tempfile::TempDir) -> Process {
        Process::join(open(folder).0, 0).expect("a slot")
    }

    #[test]
    fn a_flipped_bit_is_behind_the_skipped_bytes() {
        let folder = tempfile::tempdir().expect("a folder");
        let process = process(&folder);
        let mut bytes = [0u8; 8];
        let list = SgeList::Local { start: bytes.as_mut_ptr(), len: bytes.len() };
        assert_eq!(Transfer::new(&process).flip_bit(list, 3, 9), Ok(()));
        assert_eq!(bytes, [0, 0, 0, 0, 2, 0, 0, 0]);
    }

    #[test]
    fn a_list_that_is_too_short_is_an_error_of_its_side() {
        let folder = tempfile::tempdir().expect("a folder");
        let process = process(&folder);
        let transfer = Transfer::new(&process);
        let (mut from, mut to) = ([7u8; 8], [0u8; 8]);
        let list = |bytes: &mut [u8]| SgeList::Local { start: bytes.as_mut_ptr(), len: bytes.len() };
        let run = |from: SgeList<'_>, to: SgeList<'_>| transfer.run(&mut from.cursor(), &mut to.cursor(), 8);
        assert_eq!(run(list(&mut from[..4]), list(&mut to)), Err(TransferError::Source));
        assert_eq!(run(list(&mut from), list(&mut to[..4])), Err(TransferError::Destination));
        assert_eq!(run(list(&mut from), list(&mut to)), Ok(()));
        assert_eq!(to, [7; 8]);
    }

    /// The process that found the owner dead has released its pages, maybe while they were copied.
    #[test]
    fn what_comes_from_the_dead_is_not_believed() {
        let folder = tempfile::tempdir().expect("a folder");
        let (own, other) = (process(&folder), process(&folder));
        let view = own.view(other.me.slot, 0).expect("the other");
        let access = Access { view, pd: 0, flags: verbs_sys::AccessFlags::NONE, newest: 0 };
        let from = SgeList::Registered { access, first: ptr::null(), count: 0 };
        let check = || Transfer::new(&own).check_source(&from.cursor());
        assert_eq!(check(), Ok(()));
        drop(other);
        assert!(view.is_dead());
        assert_eq!(check(), Err(TransferError::PeerGone));
    }
}
