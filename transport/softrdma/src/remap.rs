//! Registered pages that peers store into directly.
//!
//! The pages of a registration are replaced by pages of this process's shared file, with the same content, at
//! the same address. Only whole pages of private anonymous memory are replaced, and only on request
//! (`SOFTRDMA_REMAP=1`): no other thread may write to them meanwhile, and forked children no longer get a
//! copy of them.
//!
//! Pages that were never written take up no memory before and none after: they stay holes in the file. So
//! memory may run out when they are first written, which is a signal. Pages are shared only while there is
//! room for all holes that this and the other processes of the fabric have left. Other programs may still
//! take that room.
//!
//! # Safety
//! The content of an address range is read from the system's own list just before. Pages are replaced only
//! where that list says that they are private anonymous memory that the program maps readable and writable.

use crate::shm::{MRS, Process};
use rustix::{
    fs,
    mm::{self, Advice, MapFlags, ProtFlags},
    param::page_size,
};
use std::{
    fs::File,
    io::{self, BufRead},
    os::unix::fs::FileExt,
    slice,
    sync::atomic::Ordering::Relaxed,
};

/// A line of the list of mappings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MapLine {
    start: u64,
    end: u64,
    is_plain: bool,
    offset: u64,
    inode: u64,
}

fn parse(line: &str) -> Option<MapLine> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let rights = words.next()?;
    let offset = words.next()?;
    let inode: u64 = words.nth(1)?.parse().ok()?;
    let name = words.next().unwrap_or_default();
    let number = |text| u64::from_str_radix(text, 16).ok();
    Some(MapLine {
        start: number(start)?,
        end: number(end)?,
        is_plain: rights == "rw-p" && inode == 0 && (name.is_empty() || name == "[heap]"),
        offset: number(offset)?,
        inode,
    })
}

fn lines() -> Vec<MapLine> {
    let Ok(list) = File::open("/proc/self/maps") else { return Vec::new() };
    io::BufReader::new(list).lines().map_while(Result::ok).filter_map(|line| parse(&line)).collect()
}

/// Returns the bytes of a page.
fn page() -> u64 {
    page_size() as u64
}

/// Whether memory is mapped at all of these addresses.
pub(crate) fn is_mapped(start: u64, end: u64) -> bool {
    let mut residency = [0u8; 4096];
    let step = residency.len() as u64 * page();
    let mut at = start & !(page() - 1);
    while at < end {
        let len = (end - at).min(step);
        // SAFETY: `mincore` writes a byte for each page of the range, of which there are at most 4096. It
        // fails where nothing is mapped.
        if unsafe { libc::mincore(at as *mut libc::c_void, len as usize, residency.as_mut_ptr().cast()) } != 0
        {
            return false;
        }
        at += step;
    }
    true
}

/// A run of private pages that is to be shared, and its offset in the file.
#[derive(Clone, Copy, Debug)]
struct Run {
    start: u64,
    len: u64,
    offset: u64,
}

/// Shares the pages of this memory, and returns their offset in the shared file. Called by one thread at a
/// time.
///
/// Returns `None` if the pages can't be shared or there is no room. They then stay as they are.
pub(crate) fn share(process: &Process, start: u64, len: u64) -> Option<u64> {
    let inode = process.pages_inode()?;
    let lines = lines();
    release(process, &lines, inode);
    let end = start + len;
    let over: Vec<&MapLine> = lines.iter().filter(|line| line.start < end && line.end > start).collect();
    let (first, last) = (over.first()?, over.last()?);
    let is_gapless = over.windows(2).all(|pair| pair[0].end == pair[1].start);
    if first.start > start || last.end < end || !is_gapless {
        return None;
    }
    // The offset in the file of our start, if this mapping determines it.
    let by = |line: &MapLine| line.offset.wrapping_add(start.wrapping_sub(line.start));
    if over.iter().all(|line| line.inode == inode && by(line) == by(first)) {
        return Some(by(first));
    }
    if !(start | len).is_multiple_of(page()) {
        return None;
    }
    let offset = process.windows().place(start, end, (first.start, last.end))?;
    let is_shared = |line: &&MapLine| line.inode == inode && by(line) == offset;
    let private: Vec<&MapLine> = over.into_iter().filter(|line| !is_shared(line)).collect();
    if !private.iter().all(|line| line.is_plain) {
        return None;
    }
    let run = |line: &&MapLine| {
        let (from, to) = (line.start.max(start), line.end.min(end));
        Run { start: from, len: to - from, offset: offset + (from - start) }
    };
    let runs: Vec<Run> = private.iter().map(run).collect();
    let shared = lines.iter().filter(|line| line.inode == inode).map(|line| line.end - line.start).sum();
    replace(process, &runs, shared).map(|()| offset)
}

/// Releases the pages that the program has unmapped, unless a registration still names them.
fn release(process: &Process, lines: &[MapLine], inode: u64) {
    let own = process.own();
    let registered: Vec<(u64, u64)> = (0..MRS)
        .filter_map(|index| own.mr(index))
        .filter(|mr| mr.key.load(Relaxed) != 0 && mr.shared_at.load(Relaxed) != u64::MAX)
        .map(|mr| (mr.shared_at.load(Relaxed), mr.len.load(Relaxed)))
        .collect();
    let mapped = lines.iter().filter(|line| line.inode == inode);
    let used: Vec<(u64, u64)> =
        mapped.map(|line| (line.offset, line.end - line.start)).chain(registered).collect();
    let is_used = |start, end| used.iter().any(|&(at, len)| at < end && start < at + len);
    for range in process.windows().release(is_used) {
        process.release_pages(range);
    }
}

/// Copies the pages of these runs into the file, and maps the file in their place.
fn replace(process: &Process, runs: &[Run], shared: u64) -> Option<()> {
    let more: u64 = runs.iter().map(|run| run.len).sum();
    process.reserve_pages(shared, more)?;
    let file = File::from(rustix::io::fcntl_dupfd_cloexec(process.pages_fd(), 0).ok()?);
    let filled = runs.iter().try_for_each(|run| fill(process, &file, run));
    if filled.is_none() {
        runs.iter().for_each(|run| process.release_pages((run.offset, run.len)));
        process.reserve_pages(shared, 0);
        return None;
    }
    for run in runs {
        let (place, len) = (run.start as *mut libc::c_void, run.len as usize);
        let (rights, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED);
        // SAFETY: replaces pages of private anonymous memory by shared ones with the same content and rights.
        unsafe {
            mm::mmap(place, len, rights, flags, process.pages_fd(), run.offset).ok()?;
            let _ = mm::madvise(place, len, Advice::LinuxDontFork);
        }
    }
    Some(())
}

/// Copies the written pages of a run into the file, where the run's range is emptied first.
fn fill(process: &Process, file: &File, run: &Run) -> Option<()> {
    process.release_pages((run.offset, run.len));
    written(run.start, run.len, |from, content| {
        file.write_all_at(content, run.offset + (from - run.start)).ok()
    })
}

/// Visits the runs of pages that are not all zeros. Does not touch pages that were never written: reading
/// them would cost memory and time.
fn written(start: u64, len: u64, mut visit: impl FnMut(u64, &[u8]) -> Option<()>) -> Option<()> {
    /// Pages that are looked up at a time.
    const BATCH: u64 = 1 << 15;
    let touched = File::open("/proc/self/pagemap").ok();
    let mut words = vec![0u8; BATCH as usize * size_of::<u64>()];
    let mut from = start;
    while from < start + len {
        let count = ((start + len - from) / page()).min(BATCH);
        let words = &mut words[..count as usize * size_of::<u64>()];
        // Without the list, all pages count as touched.
        let place = from / page() * size_of::<u64>() as u64;
        if touched.as_ref().is_none_or(|list| list.read_exact_at(words, place).is_err()) {
            words.fill(0xff);
        }
        let mut run = None;
        for number in 0..count {
            let at = from + number * page();
            let is_written = is_touched(words, number) && !is_zero(at);
            if is_written {
                run.get_or_insert(at);
            }
            let is_end = !is_written || number + 1 == count;
            if let Some(begin) = run.filter(|_| is_end) {
                let end = if is_written { at + page() } else { at };
                visit(begin, content(begin, end - begin))?;
                run = None;
            }
        }
        from += count * page();
    }
    Some(())
}

/// Whether a page is in memory or swapped out: bits 63 and 62 of its word in the system's list.
fn is_touched(words: &[u8], number: u64) -> bool {
    words[number as usize * size_of::<u64>() + if cfg!(target_endian = "little") { 7 } else { 0 }] >> 6 != 0
}

fn content<'a>(start: u64, len: u64) -> &'a [u8] {
    // SAFETY: readable memory of the program, mapped throughout according to the list. It is not written
    // meanwhile; see the module.
    unsafe { slice::from_raw_parts(start as *const u8, len as usize) }
}

fn is_zero(at: u64) -> bool {
    let bytes = content(at, page());
    // All bytes are zero if each equals its neighbor and the first is zero. The comparison runs at memory
    // speed.
    bytes[0] == 0 && bytes[1..] == bytes[..bytes.len() - 1]
}

impl Process {
    /// Returns the inode number of the file of shared pages.
    fn pages_inode(&self) -> Option<u64> {
        fs::fstat(self.pages_fd()).ok().map(|about| about.st_ino)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::Directory;
    use std::sync::Arc;

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
        let byte = [0u8; 1];
        let here = byte.as_ptr() as u64;
        assert!(is_mapped(here, here + 1));
        assert!(!is_mapped(8 * page(), 9 * page()));
    }

    #[test]
    fn only_what_was_written_is_found() {
        let page = page() as usize;
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: new pages, of which the first, the fourth and the fifth are written and the seventh is
        // read.
        let start = unsafe {
            let start = mm::mmap_anonymous(std::ptr::null_mut(), 64 * page, rights, MapFlags::PRIVATE)
                .expect("memory");
            [0, 3, 4].into_iter().for_each(|number| start.cast::<u8>().add(number * page + 5).write(1));
            start.cast::<u8>().add(6 * page).read_volatile();
            start
        };
        let pages = page as u64;
        let mut found = Vec::new();
        written(start as u64, 64 * pages, |from, content| {
            found.push(((from - start as u64) / pages, content.len() as u64 / pages));
            Some(())
        });
        assert_eq!(found, [(0, 1), (3, 2)]);
        // SAFETY: the pages that were just made.
        unsafe { mm::munmap(start, 64 * page).expect("ours") };
    }

    /// A program that has closed its devices still uses the pages that it has shared, such as those of its
    /// heap. Peers release their mappings of the pages, and leave the content alone.
    #[test]
    fn a_program_that_has_left_keeps_the_content_of_its_memory() {
        let folder = tempfile::tempdir().expect("a folder");
        let [owner, peer] = [0; 2].map(|_| {
            let directory = Directory::open(folder.path(), 1).expect("a fabric");
            Process::join(Arc::new(directory), 0).expect("a slot")
        });
        let len = 2 * page_size();
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: new pages.
        let start = unsafe { mm::mmap_anonymous(std::ptr::null_mut(), len, rights, MapFlags::PRIVATE) };
        let start = start.expect("memory").cast::<u8>();
        // SAFETY: within the new pages.
        unsafe { start.write_volatile(7) };
        let at = share(&owner, start as u64, len as u64).expect("room");
        let view = peer.view(owner.me.slot, 0).expect("the owner");
        let theirs = peer.pages(view).expect("its pages").range().bytes(at, 1).expect("inside");
        // SAFETY: mapped by `peer`, which outlives the reads.
        let read = || unsafe { [start.read_volatile(), theirs.read_volatile()] };
        assert_eq!(read(), [7, 7]);
        drop(owner);
        assert!(view.is_dead());
        assert_eq!(read(), [7, 0], "the peer reads zeros, the owner its content");
        // SAFETY: the pages that were mapped above.
        unsafe { mm::munmap(start.cast(), len).expect("ours") };
    }
}
