//! The processors of this machine and their caches, as the kernel describes them.
//!
//! All ranks of a host see the same: nothing here depends on the cores to which a rank is bound.

use std::{fmt, fs, path::Path, sync::OnceLock};

/// The processors of this machine: all of them, not those that this rank may use, since ranks differ in that.
pub(crate) struct Processors {
    pub(crate) cores: usize,
    model: String,
}

impl Processors {
    /// Returns this machine's processors, which are queried once.
    pub(crate) fn here() -> &'static Processors {
        static HERE: OnceLock<Processors> = OnceLock::new();
        HERE.get_or_init(|| Processors::read(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default()))
    }

    fn read(info: &str) -> Processors {
        let cores = match info.lines().filter(|line| line.starts_with("processor")).count() {
            0 => std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            listed => listed,
        };
        let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let model =
            model.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, model)| model.trim().to_owned());
        Processors { cores, model }
    }
}

impl fmt::Display for Processors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} cores, {}", self.cores, self.model)
    }
}

/// Bytes of the data caches of a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Caches {
    /// The largest one below the last level.
    pub(crate) own: usize,
    /// The last level.
    pub(crate) last: usize,
}

impl Caches {
    /// Returns the caches of this machine's first core, which are read once; `None` where unknown.
    pub(crate) fn here() -> Option<&'static Caches> {
        static HERE: OnceLock<Option<Caches>> = OnceLock::new();
        HERE.get_or_init(|| Caches::read(Path::new("/sys/devices/system/cpu/cpu0/cache"))).as_ref()
    }

    /// Reads sysfs; `None` where it lists no third level, as on other systems than Linux.
    fn read(folder: &Path) -> Option<Caches> {
        let mut sizes = [0; 3];
        for cache in fs::read_dir(folder).ok()?.flatten() {
            let text = |name: &str| fs::read_to_string(cache.path().join(name)).ok();
            let Some(level) = text("level").and_then(|level| level.trim().parse::<usize>().ok()) else {
                continue;
            };
            let kib = text("size").and_then(|size| size.trim().strip_suffix('K')?.parse::<usize>().ok());
            if text("type").is_some_and(|kind| kind.trim() != "Instruction") && (1..=3).contains(&level) {
                sizes[level - 1] = kib? << 10;
            }
        }
        let [first, second, last] = sizes;
        (last > 0).then_some(Caches { own: first.max(second), last })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[cfg(target_os = "linux")]
    #[test]
    fn a_rank_that_is_bound_to_a_core_is_on_the_same_machine() {
        use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
        let read = || fs::read_to_string("/proc/cpuinfo").expect("Linux tells");
        let everywhere = Processors::read(&read()).to_string();
        let bound = std::thread::spawn(move || {
            let allowed = sched_getaffinity(None).expect("told");
            let first = (0..CpuSet::MAX_CPU).find(|core| allowed.is_set(*core)).expect("a core");
            let mut one = CpuSet::new();
            one.set(first);
            sched_setaffinity(None, &one).expect("allowed");
            Processors::read(&read()).to_string()
        });
        assert_eq!(bound.join().expect("no panic"), everywhere);
    }

    #[test]
    fn caches_are_read_from_sysfs() {
        let folder = std::env::temp_dir().join(format!("tbccl-caches-{}", std::process::id()));
        let write = |index: &str, kind: &str, level: &str, size: &str| {
            let cache = folder.join(index);
            fs::create_dir_all(&cache).expect("a folder");
            for (name, text) in [("type", kind), ("level", level), ("size", size)] {
                fs::write(cache.join(name), format!("{text}\n")).expect("a file");
            }
        };
        write("index0", "Data", "1", "32K");
        write("index1", "Instruction", "1", "64K");
        write("index2", "Unified", "2", "1024K");
        assert_eq!(Caches::read(&folder), None, "no cache is shared by all cores");
        write("index3", "Unified", "3", "32768K");
        assert_eq!(Caches::read(&folder), Some(Caches { own: MIB, last: 32 * MIB }));
        fs::remove_dir_all(&folder).expect("it is there");
        assert_eq!(Caches::read(&folder), None);
    }
}
