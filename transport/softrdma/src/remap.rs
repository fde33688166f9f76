//! Registered pages that peers store into directly.
//!
//! The pages of a registration are replaced by pages of this process's shared file, with the same content, at
//! the same address. That is done only to whole pages of private anonymous memory, and only when asked for
//! (`SOFTRDMA_REMAP=1`): no other thread may write to them meanwhile, and a child no longer gets a copy of
//! them.
//!
//! # Safety
//! What lies at an address is read from the system's own list just before. Pages are replaced only where that
//! list says that they are private anonymous memory that the program maps readable and writable, in one
//! piece.

use crate::shm::Process;
use rustix::{
    fs,
    mm::{self, Advice, MapFlags, ProtFlags},
};
use std::{io::BufRead, os::unix::fs::FileExt, slice};

const PAGE: u64 = 4096;

/// A line of the list of mappings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Line {
    start: u64,
    end: u64,
    is_plain: bool,
    offset: u64,
    inode: u64,
}

fn parse(line: &str) -> Option<Line> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let rights = words.next()?;
    let offset = words.next()?;
    let inode: u64 = words.nth(1)?.parse().ok()?;
    let name = words.next().unwrap_or_default();
    let number = |text| u64::from_str_radix(text, 16).ok();
    Some(Line {
        start: number(start)?,
        end: number(end)?,
        is_plain: rights == "rw-p" && inode == 0 && (name.is_empty() || name == "[heap]"),
        offset: number(offset)?,
        inode,
    })
}

fn lines_over(start: u64, end: u64) -> Vec<Line> {
    let Ok(list) = std::fs::File::open("/proc/self/maps") else { return Vec::new() };
    let lines = std::io::BufReader::new(list).lines().map_while(Result::ok);
    lines.filter_map(|line| parse(&line)).filter(|line| line.start < end && line.end > start).collect()
}

/// Is there memory at all of these addresses?
pub(crate) fn is_mapped(start: u64, end: u64) -> bool {
    const STEP: u64 = 4096 * PAGE;
    let mut residency = [0u8; 4096];
    let mut at = start & !(PAGE - 1);
    while at < end {
        let len = (end - at).min(STEP);
        // SAFETY: `mincore` writes a byte for each page of the range, of which there are at most 4096; it
        // fails where nothing is mapped.
        if unsafe { libc::mincore(at as *mut libc::c_void, len as usize, residency.as_mut_ptr().cast()) } != 0
        {
            return false;
        }
        at += STEP;
    }
    true
}

/// Shares the pages of this memory, and returns where in the shared file they are. `None` when they are not
/// of the kind that can be shared, or there is no room: they then stay as they are.
pub(crate) fn share(process: &Process, start: u64, len: u64) -> Option<u64> {
    if !start.is_multiple_of(PAGE) || !len.is_multiple_of(PAGE) || len == 0 {
        return None;
    }
    let end = start + len;
    let lines = lines_over(start, end);
    if let [line] = lines.as_slice()
        && line.inode != 0
        && Some(line.inode) == process.pages_inode()
        && line.start <= start
        && line.end >= end
    {
        // Shared by an earlier registration.
        return Some(line.offset + (start - line.start));
    }
    let covered: u64 = lines.iter().map(|line| line.end.min(end) - line.start.max(start)).sum();
    if covered != len || !lines.iter().all(|line| line.is_plain) {
        return None;
    }
    let (file, range) = process.take_pages(len).ok()?;
    // SAFETY: readable memory of the program, all of it mapped, as the list says. It is not written to
    // meanwhile: see above.
    let content = unsafe { slice::from_raw_parts(start as *const u8, len as usize) };
    let copy = std::fs::File::from(rustix::io::fcntl_dupfd_cloexec(file, 0).ok()?);
    copy.write_all_at(content, range.0).ok()?;
    let place = start as *mut libc::c_void;
    // SAFETY: replaces pages of private anonymous memory by shared ones with the same content and rights.
    unsafe {
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        mm::mmap(place, len as usize, ProtFlags::READ | ProtFlags::WRITE, flags, file, range.0).ok()?;
        let _ = mm::madvise(place, len as usize, Advice::LinuxDontFork);
    }
    Some(range.0)
}

impl Process {
    /// The number of the file that pages are shared through.
    fn pages_inode(&self) -> Option<u64> {
        fs::fstat(self.pages_fd()).ok().map(|about| about.st_ino)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_list_are_understood() {
        let line = parse("7f00aa000000-7f00aa021000 rw-p 00000000 00:00 0 ").expect("a line");
        assert!(line.is_plain && line.start == 0x7f00_aa00_0000 && line.end == 0x7f00_aa02_1000);
        let line = parse("7f00aa000000-7f00aa021000 rw-s 00003000 00:1b 77  /dev/shm/x/m3").expect("a line");
        assert_eq!((line.is_plain, line.offset, line.inode), (false, 0x3000, 77));
        assert!(!parse("1000-2000 rw-p 0 00:00 0 [stack]").expect("a line").is_plain);
    }

    #[test]
    fn what_is_not_mapped_is_noticed() {
        let page = [0u8; 1];
        let here = page.as_ptr() as u64;
        assert!(is_mapped(here, here + 1));
        assert!(!is_mapped(8 * PAGE, 9 * PAGE));
    }
}
