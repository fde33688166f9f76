//! The options of the runtime: one table of their names, what they mean, and how a value is taken in and shown.
//!
//! The environment, `--help` and the documentation of options all go by it. What a value must be beyond its kind, and what
//! two of them must be to each other, is checked in the module above.

use super::Config;
use collectives::{
    parse_bytes,
    select::{Overrides, Tuned, price::Model},
};
use std::{
    fmt::{Debug, Display},
    str::FromStr,
    time::Duration,
};
use transport::driver::tcp::{Bind, Security};

/// One option: its environment variable, what it means, and how a value is taken in and shown.
#[derive(Clone, Copy, Debug)]
pub struct ConfigOption {
    /// The environment variable.
    pub env: &'static str,
    /// One line for people.
    pub doc: &'static str,
    /// Must it be equal on all ranks?
    pub shared: bool,
    pub(super) set: fn(&mut Config, &str) -> Result<(), String>,
    pub(super) get: fn(&Config) -> String,
}

impl ConfigOption {
    /// The value that it has there, as text.
    #[must_use]
    pub fn value(&self, config: &Config) -> String {
        (self.get)(config)
    }
}

/// All options.
pub const OPTIONS: &[ConfigOption] = &[
    ConfigOption {
        env: "TBCCL_TRANSPORT",
        doc: "what moves the bytes between processes: auto, shm, tcp or verbs, or one within hosts and another one between \
              them: shm+tcp, shm+verbs, or shm+auto, which is shm+verbs if RDMA connects all hosts and shm+tcp if not (auto: \
              shm, or shm+auto where ranks have a secret)",
        shared: true,
        set: |c, v| put(&mut c.transport, parse(v)),
        get: |c| c.transport.name().to_owned(),
    },
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
        doc: "address space for registered memory per rank (16G; 1G where a device must know it beforehand); memory is \
              taken up only as it is used",
        shared: true,
        set: |c, v| put(&mut c.slab_bytes, parse_bytes(v).map(Some)),
        get: |c| c.slab_bytes.map(|bytes| bytes.to_string()).unwrap_or_default(),
    },
    ConfigOption {
        env: "TBCCL_ALGO",
        doc: "algorithms for collectives that have them, instead of the automatic choice: the first of ring,mesh that can do \
              a call; or none of those in ^ring,mesh",
        shared: true,
        set: |c, v| put(&mut c.algorithm, Ok((!v.is_empty()).then(|| v.to_owned()))),
        get: |c| c.algorithm.clone().unwrap_or_default(),
    },
    ConfigOption {
        env: "TBCCL_RULES",
        doc: "a file of rules: which algorithm for which calls, see docs/selection.md",
        shared: true,
        set: |c, v| {
            let read = |text: &str| Overrides::rules_from_toml(text).map_err(|error| error.to_string());
            put(&mut c.rules, if v.is_empty() { Ok(Vec::new()) } else { file(v, read) })
        },
        get: |c| digest(&c.rules),
    },
    ConfigOption {
        env: "TBCCL_TUNING",
        doc: "a file that `tbccl tune` has written: what is best on these links",
        shared: true,
        set: |c, v| {
            let read = |text: &str| Tuned::from_toml(text).map(Some).map_err(|error| error.to_string());
            put(&mut c.tuned, if v.is_empty() { Ok(None) } else { file(v, read) })
        },
        get: |c| digest(&c.tuned),
    },
    ConfigOption {
        env: "TBCCL_MODEL",
        doc: "a file that describes the machines and cables, with costs: what was not measured is chosen by simulation, see \
              docs/selection.md (thresholds)",
        shared: true,
        set: |c, v| {
            put(&mut c.model, if v.is_empty() { Ok(None) } else { file(v, Model::from_toml).map(Some) })
        },
        get: |c| c.model.as_ref().map(|model| hash(&model.canonical())).unwrap_or_default(),
    },
    ConfigOption {
        env: "TBCCL_SEGMENTS",
        doc: "segments per chunk for pipelining, instead of the automatic choice (0)",
        shared: true,
        set: |c, v| put(&mut c.segments, parse(v)),
        get: |c| c.segments.to_string(),
    },
    ConfigOption {
        env: "TBCCL_NUMERICS",
        doc: "in what order contributions are combined: fast, or reproducible: the same bits for every algorithm, size and \
              transport (fast)",
        shared: true,
        set: |c, v| put(&mut c.numerics, parse(v)),
        get: |c| c.numerics.to_string(),
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
        doc: "smallest operation whose registered memory is moved without copying it (4096)",
        shared: true,
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
        env: "TBCCL_CORES",
        doc: "cores that the ranks of a host share: with more ranks, plans of fewer messages are chosen (all that it has)",
        shared: true,
        set: |c, v| put(&mut c.cores, parse(v).map(Some)),
        get: |c| c.cores.map(|cores| cores.to_string()).unwrap_or_default(),
    },
    ConfigOption {
        env: "TBCCL_REDUCE_THREADS",
        doc: "threads that one rank may use to reduce large chunks (cores / ranks of this host)",
        shared: false,
        set: |c, v| put(&mut c.reduce_threads, parse(v).map(Some)),
        get: |c| c.reduce_threads.map(|t| t.to_string()).unwrap_or_default(),
    },
    ConfigOption {
        env: "TBCCL_HOST_ID",
        doc: "a name for this host: ranks with different names share no memory, as if they were on different hosts (none)",
        shared: false,
        set: |c, v| put(&mut c.host_id, Ok(v.to_owned())),
        get: |c| c.host_id.clone(),
    },
    ConfigOption {
        env: "TBCCL_INTERFACE",
        doc: "interface or address of this host for connections over TCP, e.g. eth0 or 10.0.0.1 (from which the rendezvous \
              is reached)",
        shared: false,
        set: |c, v| {
            let wanted = v.parse().map_err(|never: std::convert::Infallible| match never {});
            put(&mut c.interface, wanted.map(|bind| (!v.is_empty()).then_some(bind)))
        },
        get: |c| c.interface.as_ref().map(Bind::to_string).unwrap_or_default(),
    },
    ConfigOption {
        env: "TBCCL_SECURITY",
        doc: "what connections over TCP are protected by: authenticate, or encrypt as well (authenticate)",
        shared: true,
        set: |c, v| {
            c.security = match v {
                "" | "authenticate" => Security::Authenticate,
                "encrypt" => Security::Encrypt,
                _ => return Err("must be authenticate or encrypt".into()),
            };
            Ok(())
        },
        get: |c| match c.security {
            Security::Authenticate => "authenticate".to_owned(),
            Security::Encrypt => "encrypt".to_owned(),
        },
    },
    ConfigOption {
        env: "TBCCL_TCP_SOCKETS",
        doc: "TCP connections side by side per lane between two ranks, 1 to 16 (1 within a host, 2 between hosts)",
        shared: true,
        set: |c, v| match v {
            "" | "auto" => put(&mut c.tcp_sockets, Ok(None)),
            _ => put(&mut c.tcp_sockets, parse(v).map(Some)),
        },
        get: |c| c.tcp_sockets.map(|count| count.to_string()).unwrap_or_default(),
    },
    ConfigOption {
        env: "TBCCL_TCP_BUFFER_BYTES",
        doc: "bytes that the system may hold for each direction of a TCP connection, 256K to 1G (the system decides)",
        shared: false,
        set: |c, v| match v {
            "" | "auto" => put(&mut c.tcp_buffer_bytes, Ok(None)),
            _ => put(&mut c.tcp_buffer_bytes, parse_bytes(v).map(|bytes| Some(bytes as usize))),
        },
        get: |c| c.tcp_buffer_bytes.map(|bytes| bytes.to_string()).unwrap_or_default(),
    },
    ConfigOption {
        env: "TBCCL_SILENCE",
        doc: "seconds that a host may leave an answer over TCP owing before it is taken for gone, 1.4 to 60 (1.4)",
        shared: true,
        set: |c, v| {
            let seconds: f64 = parse(v)?;
            c.silence = Duration::try_from_secs_f64(seconds).map_err(|e| e.to_string())?;
            Ok(())
        },
        get: |c| c.silence.as_secs_f64().to_string(),
    },
    ConfigOption {
        env: "TBCCL_VERBS_LIB",
        doc: "verbs library to load, by path (librdma.dylib on macOS, libibverbs.so.1 elsewhere)",
        shared: false,
        set: |c, v| put(&mut c.verbs_lib, Ok((!v.is_empty()).then(|| v.into()))),
        get: |c| c.verbs_lib.as_ref().map(|path| path.display().to_string()).unwrap_or_default(),
    },
    ConfigOption {
        env: "TBCCL_IBV_DEVICES",
        doc: "JSON file with the RDMA devices between each two ranks, as MLX_IBV_DEVICES and JACCL_IBV_DEVICES, which count where this is not set (found out)",
        shared: false,
        set: |c, v| put(&mut c.ibv_devices, Ok((!v.is_empty()).then(|| v.into()))),
        get: |c| c.ibv_devices.as_ref().map(|path| path.display().to_string()).unwrap_or_default(),
    },
    ConfigOption {
        env: "TBCCL_RDMA_SERVICE",
        doc: "rc for reliable RDMA connections, uc for unreliable ones (rc where all devices have it)",
        shared: true,
        set: |c, v| {
            c.reliable = match v {
                "" | "auto" => None,
                "rc" => Some(true),
                "uc" => Some(false),
                _ => return Err("must be auto, rc or uc".into()),
            };
            Ok(())
        },
        get: |c| c.reliable.map_or("", |reliable| if reliable { "rc" } else { "uc" }).to_owned(),
    },
    ConfigOption {
        env: "TBCCL_CHECKSUM",
        doc: "1 to check everything that travels by RDMA, 0 not to (1 on unreliable connections)",
        shared: true,
        set: |c, v| {
            c.checksum = match v {
                "" | "auto" => None,
                "0" => Some(false),
                "1" => Some(true),
                _ => return Err("must be auto, 0 or 1".into()),
            };
            Ok(())
        },
        get: |c| c.checksum.map(|on| u8::from(on).to_string()).unwrap_or_default(),
    },
    ConfigOption {
        env: "TBCCL_RDMA_PIECE_BYTES",
        doc: "largest piece of a message to send by RDMA at a time; a multiple of 4096 (128K)",
        shared: true,
        set: |c, v| put(&mut c.rdma_piece_bytes, parse_bytes(v)),
        get: |c| c.rdma_piece_bytes.to_string(),
    },
    ConfigOption {
        env: "TBCCL_RDMA_WINDOW",
        doc: "pieces under way from one rank to another on a lane, 1 to 16 (8)",
        shared: true,
        set: |c, v| put(&mut c.rdma_window, parse(v)),
        get: |c| c.rdma_window.to_string(),
    },
    ConfigOption {
        env: "TBCCL_SEGMENT_BYTES",
        doc: "bytes of registered memory that a device is told of at a time; a power of two up to 1G (256M)",
        shared: true,
        set: |c, v| put(&mut c.segment_bytes, parse_bytes(v)),
        get: |c| c.segment_bytes.to_string(),
    },
    ConfigOption {
        env: "TBCCL_CACHE_REGIONS",
        doc: "regions of memory passed to Communicator::register that a device knows at a time (256)",
        shared: false,
        set: |c, v| put(&mut c.cache_regions, parse(v)),
        get: |c| c.cache_regions.to_string(),
    },
    ConfigOption {
        env: "TBCCL_CACHE_BYTES",
        doc: "bytes of memory passed to Communicator::register that a device knows at a time (16G)",
        shared: false,
        set: |c, v| put(&mut c.cache_bytes, parse_bytes(v)),
        get: |c| c.cache_bytes.to_string(),
    },
    ConfigOption {
        env: "TBCCL_POLL_BATCH",
        doc: "completions to take from an RDMA device's queue at a time, 4 to 16 (16)",
        shared: false,
        set: |c, v| put(&mut c.poll_batch, parse(v)),
        get: |c| c.poll_batch.to_string(),
    },
    ConfigOption {
        env: "TBCCL_POLL_INTERVAL_US",
        doc: "microseconds between polls of an RDMA device's queue while spinning, 0 to 10 (0)",
        shared: false,
        set: |c, v| {
            let micros: f64 = parse(v)?;
            c.poll_interval = Duration::try_from_secs_f64(micros * 1e-6).map_err(|e| e.to_string())?;
            Ok(())
        },
        get: |c| (c.poll_interval.as_secs_f64() * 1e6).to_string(),
    },
    ConfigOption {
        env: "TBCCL_POLL_EVENTS",
        doc: "1 to sleep until the RDMA device wakes us when a wait gets long, 0 to poll (1 where the device can)",
        shared: false,
        set: |c, v| {
            c.poll_events = match v {
                "" | "auto" => None,
                "0" => Some(false),
                "1" => Some(true),
                _ => return Err("must be auto, 0 or 1".into()),
            };
            Ok(())
        },
        get: |c| c.poll_events.map(|on| u8::from(on).to_string()).unwrap_or_default(),
    },
    ConfigOption {
        env: "TBCCL_POLL_EVENT_PERCENT",
        doc: "an RDMA device's queue that is fuller than this is polled and not slept on, in percent (50)",
        shared: false,
        set: |c, v| put(&mut c.poll_event_percent, parse(v)),
        get: |c| c.poll_event_percent.to_string(),
    },
    ConfigOption {
        env: "TBCCL_KEEP_ALIVE",
        doc: "seconds without a message after which RDMA connections are kept alive (60)",
        shared: true,
        set: |c, v| {
            let seconds: f64 = parse(v)?;
            c.keep_alive = Duration::try_from_secs_f64(seconds)
                .ok()
                .filter(|t| *t >= Duration::from_millis(10))
                .ok_or("must be a number of seconds, 0.01 at least")?;
            Ok(())
        },
        get: |c| c.keep_alive.as_secs_f64().to_string(),
    },
    ConfigOption {
        env: "TBCCL_DUMP",
        doc: "folder for the latest calls of a rank that fails, as lines of JSON in tbccl-rank0-pid1234.jsonl; SIGUSR2 has \
              them written as well (none)",
        shared: false,
        set: |c, v| put(&mut c.dump, Ok((!v.is_empty()).then(|| v.into()))),
        get: |c| c.dump.as_ref().map(|path| path.display().to_string()).unwrap_or_default(),
    },
];

/// Reads a file.
fn file<T>(path: &str, read: impl Fn(&str) -> Result<T, String>) -> Result<T, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("can't read {path}: {error}"))?;
    read(&text).map_err(|error| format!("{path}: {error}"))
}

/// What ranks compare of a file: not where it is, but what it says.
fn digest<T: Default + PartialEq + Debug>(value: &T) -> String {
    if *value == T::default() {
        return String::new();
    }
    hash(&format!("{value:?}"))
}

fn hash(text: &str) -> String {
    format!("#{:016x}", xxhash_rust::xxh3::xxh3_64(text.as_bytes()))
}

fn put<T>(slot: &mut T, value: Result<T, String>) -> Result<(), String> {
    *slot = value?;
    Ok(())
}

fn parse<T: FromStr<Err: Display>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|e: T::Err| e.to_string())
}
