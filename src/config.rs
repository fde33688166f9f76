//! Options of the runtime: one table of them, read once from the environment and passed down as a value.

use crate::{Error, error::Result};
use collectives::{UnknownName, plan::ALGORITHMS};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    time::Duration,
};
use transport::ring::RingLayout;

/// Options of the runtime.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// How long an operation may wait without progress, and how long ranks wait for each other at the start.
    pub timeout: Duration,
    /// Bytes of address space for registered memory, per rank. Memory is taken up only as buffers are made.
    pub slab_bytes: u64,
    /// The algorithm to use for collectives that have it, instead of the selection's choice.
    pub algorithm: Option<String>,
    /// The number of segments to use with it; 0 for the selection's choice.
    pub segments: u32,
    /// Staging bytes per ring.
    pub staging_bytes: usize,
    /// The largest piece to stage at a time.
    pub piece_bytes: usize,
    /// May the memory of peers be read by system call?
    pub pull: bool,
    /// Messages of at least this many bytes from foreign memory are pulled, where that is possible. By default none
    /// are: between two cores that share a cache, staging took from 0.4 (1 MiB) to 0.6 (64 MiB) of the time of pulling.
    pub pull_min_bytes: usize,
    /// Operations of at least this many bytes read registered memory in place.
    pub direct_min_bytes: u64,
    /// Fruitless polls before yielding; `None` lets the number of ranks and cores decide.
    pub spin_polls: Option<u32>,
    /// Threads that one rank may use to reduce; `None` for cores / ranks of this host.
    pub reduce_threads: Option<u32>,
    /// The verbs library to load, instead of the system's.
    pub verbs_lib: Option<PathBuf>,
}

impl Default for Config {
    fn default() -> Config {
        let ring = RingLayout::default();
        Config {
            timeout: Duration::from_secs(30),
            slab_bytes: 16 << 30,
            algorithm: None,
            segments: 0,
            staging_bytes: ring.staging_bytes,
            piece_bytes: ring.piece_bytes,
            pull: true,
            pull_min_bytes: usize::MAX,
            direct_min_bytes: 4096,
            spin_polls: None,
            reduce_threads: None,
            verbs_lib: None,
        }
    }
}

/// One option: its environment variable, what it means, and how a value is taken in and shown.
#[derive(Clone, Copy, Debug)]
pub struct ConfigOption {
    /// The environment variable.
    pub env: &'static str,
    /// One line for people.
    pub doc: &'static str,
    /// Must it be equal on all ranks?
    pub shared: bool,
    set: fn(&mut Config, &str) -> std::result::Result<(), String>,
    get: fn(&Config) -> String,
}

/// All options.
pub const OPTIONS: &[ConfigOption] = &[
    ConfigOption {
        env: "TBCCL_TIMEOUT",
        doc: "seconds an operation may wait without progress, and ranks for each other at the start (30)",
        shared: false,
        set: |c, v| {
            let seconds: f64 = parse(v)?;
            c.timeout = Duration::try_from_secs_f64(seconds)
                .ok()
                .filter(|t| !t.is_zero())
                .ok_or("must be a positive number of seconds")?;
            Ok(())
        },
        get: |c| c.timeout.as_secs_f64().to_string(),
    },
    ConfigOption {
        env: "TBCCL_SLAB_BYTES",
        doc: "address space for registered memory per rank (16G); memory is taken up only as it is used",
        shared: true,
        set: |c, v| put(&mut c.slab_bytes, parse_bytes(v)),
        get: |c| c.slab_bytes.to_string(),
    },
    ConfigOption {
        env: "TBCCL_ALGO",
        doc: "algorithm for collectives that have it, instead of the automatic choice",
        shared: true,
        set: |c, v| put(&mut c.algorithm, Ok((!v.is_empty()).then(|| v.to_owned()))),
        get: |c| c.algorithm.clone().unwrap_or_default(),
    },
    ConfigOption {
        env: "TBCCL_SEGMENTS",
        doc: "segments per chunk for pipelining, instead of the automatic choice (0)",
        shared: true,
        set: |c, v| put(&mut c.segments, parse(v)),
        get: |c| c.segments.to_string(),
    },
    ConfigOption {
        env: "TBCCL_STAGING_BYTES",
        doc: "staging bytes per pair of ranks and direction; a multiple of 4 pieces",
        shared: true,
        set: |c, v| put(&mut c.staging_bytes, parse_bytes(v).map(|b| b as usize)),
        get: |c| c.staging_bytes.to_string(),
    },
    ConfigOption {
        env: "TBCCL_PIECE_BYTES",
        doc: "largest piece to stage at a time; a multiple of 64",
        shared: true,
        set: |c, v| put(&mut c.piece_bytes, parse_bytes(v).map(|b| b as usize)),
        get: |c| c.piece_bytes.to_string(),
    },
    ConfigOption {
        env: "TBCCL_PULL",
        doc: "1 to read peers' memory by system call where allowed, 0 never to (1)",
        shared: true,
        set: |c, v| {
            c.pull = match v {
                "0" => false,
                "1" => true,
                _ => return Err("must be 0 or 1".into()),
            };
            Ok(())
        },
        get: |c| u8::from(c.pull).to_string(),
    },
    ConfigOption {
        env: "TBCCL_PULL_MIN_BYTES",
        doc: "smallest message from unregistered memory that is read by system call instead of staged (never)",
        shared: false,
        set: |c, v| put(&mut c.pull_min_bytes, parse_bytes(v).map(|b| b as usize)),
        get: |c| c.pull_min_bytes.to_string(),
    },
    ConfigOption {
        env: "TBCCL_DIRECT_MIN_BYTES",
        doc: "smallest operation whose registered memory is read in place (4096)",
        shared: false,
        set: |c, v| put(&mut c.direct_min_bytes, parse_bytes(v)),
        get: |c| c.direct_min_bytes.to_string(),
    },
    ConfigOption {
        env: "TBCCL_SPIN_POLLS",
        doc: "fruitless polls before yielding the core (2000, or 0 with more ranks than cores)",
        shared: false,
        set: |c, v| put(&mut c.spin_polls, parse(v).map(Some)),
        get: |c| c.spin_polls.map(|p| p.to_string()).unwrap_or_default(),
    },
    ConfigOption {
        env: "TBCCL_REDUCE_THREADS",
        doc: "threads that one rank may use to reduce large chunks (cores / ranks of this host)",
        shared: false,
        set: |c, v| put(&mut c.reduce_threads, parse(v).map(Some)),
        get: |c| c.reduce_threads.map(|t| t.to_string()).unwrap_or_default(),
    },
    ConfigOption {
        env: "TBCCL_VERBS_LIB",
        doc: "verbs library to load, by path (librdma.dylib on macOS, libibverbs.so.1 elsewhere)",
        shared: false,
        set: |c, v| put(&mut c.verbs_lib, Ok((!v.is_empty()).then(|| v.into()))),
        get: |c| c.verbs_lib.as_ref().map(|path| path.display().to_string()).unwrap_or_default(),
    },
];

/// Variables that tell a rank who it is; set by the launcher, not options.
pub(crate) const IDENTITY: &[&str] = &[
    "TBCCL_RANK",
    "TBCCL_SIZE",
    "TBCCL_LOCAL_RANK",
    "TBCCL_LOCAL_SIZE",
    "TBCCL_NODE_RANK",
    "TBCCL_BOOTSTRAP",
];

impl Config {
    /// The options that these variables set; others keep their defaults.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a value that cannot be, [`Error::UnknownName`] for a `TBCCL_` variable that
    /// nothing reads.
    pub fn from_vars(vars: impl IntoIterator<Item = (String, String)>) -> Result<Config> {
        let mut config = Config::default();
        for (name, value) in vars.into_iter().filter(|(name, _)| name.starts_with("TBCCL_")) {
            if IDENTITY.contains(&name.as_str()) {
                continue;
            }
            let Some(option) = OPTIONS.iter().find(|o| o.env == name) else {
                return Err(UnknownName::new("variable", &name, OPTIONS.iter().map(|o| o.env)).into());
            };
            (option.set)(&mut config, value.trim())
                .map_err(|why| Error::InvalidArgument(format!("{name}={value}: {why}; {}", option.doc)))?;
        }
        config.check()?;
        Ok(config)
    }

    /// The options that the process's environment sets.
    ///
    /// # Errors
    /// As for [`Config::from_vars`].
    pub fn from_env() -> Result<Config> {
        let vars =
            std::env::vars_os().filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)));
        Config::from_vars(vars)
    }

    /// The options that must be equal on all ranks, as text.
    #[must_use]
    pub fn shared(&self) -> BTreeMap<String, String> {
        OPTIONS.iter().filter(|o| o.shared).map(|o| (o.env.to_owned(), (o.get)(self))).collect()
    }

    pub(crate) fn ring(&self) -> RingLayout {
        RingLayout { cells: 256, staging_bytes: self.staging_bytes, piece_bytes: self.piece_bytes }
    }

    fn check(&self) -> Result<()> {
        let bad = |why: String| Err(Error::InvalidArgument(why));
        if let Some(name) = &self.algorithm
            && !ALGORITHMS.iter().any(|algorithm| algorithm.name == name)
        {
            let names = ALGORITHMS.iter().map(|algorithm| algorithm.name).collect::<BTreeSet<_>>();
            return Err(UnknownName::new("algorithm in TBCCL_ALGO", name, names).into());
        }
        if self.piece_bytes == 0 || !self.piece_bytes.is_multiple_of(RingLayout::LINE) {
            return bad(format!("TBCCL_PIECE_BYTES={}: must be a positive multiple of 64", self.piece_bytes));
        }
        let pieces = self.staging_bytes / self.piece_bytes;
        if !self.staging_bytes.is_multiple_of(self.piece_bytes) || pieces < 4 || self.staging_bytes > 1 << 30
        {
            return bad(format!(
                "TBCCL_STAGING_BYTES={}: must be a multiple of TBCCL_PIECE_BYTES={}, 4 pieces at least, 1G at most",
                self.staging_bytes, self.piece_bytes
            ));
        }
        if self.slab_bytes < 1 << 20 || self.slab_bytes > 1 << 40 {
            return bad(format!("TBCCL_SLAB_BYTES={}: must be from 1M to 1T", self.slab_bytes));
        }
        Ok(())
    }
}

fn put<T>(slot: &mut T, value: std::result::Result<T, String>) -> std::result::Result<(), String> {
    *slot = value?;
    Ok(())
}

fn parse<T: std::str::FromStr<Err: std::fmt::Display>>(text: &str) -> std::result::Result<T, String> {
    text.parse().map_err(|e: T::Err| e.to_string())
}

/// A number of bytes as people write it: `4096`, `64K`, `1.5M`, `2GiB`; K is 1024.
///
/// # Errors
/// Says what is wrong with it, and which suffixes there are.
pub fn parse_bytes(text: &str) -> std::result::Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        other => return Err(UnknownName::new("size suffix", other, ["K", "M", "G", "T"]).to_string()),
    };
    let unit = (1u64 << shift) as f64;
    let value: f64 =
        digits.parse().map_err(|_| format!("`{text}` is not a size; write e.g. 4, 64K, 1.5M or 2G"))?;
    let bytes = value * unit;
    if !(0.0..9e18).contains(&bytes) {
        return Err(format!("`{text}` is not a possible size"));
    }
    Ok(bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &str, value: &str) -> Result<Config> {
        Config::from_vars([(name.to_owned(), value.to_owned())])
    }

    #[test]
    fn sizes_have_suffixes() {
        for (text, bytes) in [("4", 4), ("64K", 65536), ("1.5m", 3 << 19), ("2GiB", 2 << 30), ("0", 0)] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        for text in ["", "K", "4Q", "-1", "1e99", "4 K x"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_misspelt_variable_is_an_error_with_a_suggestion() {
        let error = with("TBCCL_TIMEOUTS", "3").expect_err("no such variable");
        assert!(error.to_string().contains("did you mean `TBCCL_TIMEOUT`?"), "{error}");
    }

    #[test]
    fn impossible_values_are_errors_that_name_the_variable() {
        for (name, value) in [
            ("TBCCL_TIMEOUT", "0"),
            ("TBCCL_TIMEOUT", "soon"),
            ("TBCCL_PIECE_BYTES", "100"),
            ("TBCCL_STAGING_BYTES", "32K"),
            ("TBCCL_PULL", "yes"),
            ("TBCCL_SLAB_BYTES", "1"),
        ] {
            let error = with(name, value).expect_err(value).to_string();
            assert!(error.contains(name), "{error}");
        }
        assert_eq!(with("TBCCL_TIMEOUT", "2.5").expect("valid").timeout, Duration::from_millis(2500));
        assert_eq!(with("TBCCL_RANK", "3").expect("not an option"), Config::default());
    }
}
