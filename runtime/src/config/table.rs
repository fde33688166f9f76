//! The table of options: the one declaration of every option, with its field, default, environment variable,
//! form and limits.
//!
//! The declaration generates the structures ([`Config`] and its groups), their defaults, and [`OPTIONS`]. The
//! environment, the C interface, error messages and the tables of the documentation are derived from
//! [`OPTIONS`].

use super::{
    MlxNative, NamedDevices, Transport,
    forms::{
        AlgorithmNames, Auto, Bytes, FilePath, Flag, Form, Interface, Microseconds, ModelFile, OrNothing,
        Plain, Protection, RulesFile, Seconds, Service, Text, TuningFile,
    },
};
use crate::metrics::MetricsAddress;
use collectives::{
    Numerics,
    select::{Rule, Tuned, price::Model},
};
use events::{Filter, Format};
use std::{path::PathBuf, time::Duration};
use transport::{
    driver::{
        PEER_TIMEOUT, PEER_TIMEOUT_MAX, PEER_TIMEOUT_MIN,
        tcp::{Bind, CableSelection, Lan, Resume, Security, TcpConfig},
        verbs::DeviceSelection,
    },
    ring::{RingLayout, Stores},
};

/// An option: its environment variable, its documentation, and access to its value.
#[derive(Clone, Copy, Debug)]
pub struct ConfigOption {
    /// Environment variable.
    pub env: &'static str,
    /// Description as a sentence; the default is in parentheses.
    pub doc: &'static str,
    /// Whether the value must be equal on all ranks.
    pub shared: bool,
    /// Reads the text into the field.
    pub(super) set: fn(&mut Config, &str) -> Result<(), String>,
    /// Writes the field as text.
    pub(super) get: fn(&Config) -> String,
}

impl ConfigOption {
    /// Returns the option's value in `config`, as text.
    #[must_use]
    pub fn value(&self, config: &Config) -> String {
        (self.get)(config)
    }
}

/// Declares groups of options; see the invocation below for the form of a declaration.
macro_rules! options {
    (
        $(
            $(#[doc = $about:literal])+
            $group:ident [$($path:ident)?] {
                $($(#[doc = $inner_about:literal])+ $inner:ident: $inner_group:ident;)*
            } {
                $(
                    $(#[doc = $doc:literal])+
                    $field:ident: $type:ty = $default:expr, $env:literal, $scope:ident, $form:ty
                        $(, $limit:expr => $must:literal)?;
                )+
            }
        )+
    ) => {
        $(
            $(#[doc = $about])+
            #[derive(Clone, Debug, PartialEq)]
            pub struct $group {
                $($(#[doc = $doc])+ pub $field: $type,)+
                $($(#[doc = $inner_about])+ pub $inner: $inner_group,)*
            }

            impl Default for $group {
                fn default() -> $group {
                    $group { $($field: $default,)+ $($inner: $inner_group::default(),)* }
                }
            }

            impl $group {
                /// Returns the group of an option in `config`.
                fn of(config: &Config) -> &$group {
                    &(*config)$(.$path)?
                }

                /// Returns the group of an option in `config`, mutably.
                fn of_mut(config: &mut Config) -> &mut $group {
                    &mut (*config)$(.$path)?
                }
            }
        )+

        /// All options, in the order of the documentation.
        pub const OPTIONS: &[ConfigOption] = &[$($(
            ConfigOption {
                env: $env,
                doc: concat!($($doc),+).trim_ascii(),
                shared: is_shared!($scope),
                set: |config, text| {
                    let value: $type = <$form as Form<$type>>::parse(text)?;
                    $(
                        let is_valid: fn(&$type) -> bool = $limit;
                        if !is_valid(&value) {
                            return Err($must.into());
                        }
                    )?
                    $group::of_mut(config).$field = value;
                    Ok(())
                },
                get: |config| <$form as Form<$type>>::print(&$group::of(config).$field),
            },
        )+)+];
    };
}

macro_rules! is_shared {
    (job) => {
        true
    };
    (rank) => {
        false
    };
}

// An option: documentation; field: type = default, variable, whether it must be equal on all ranks of the
// `job` or each `rank` decides, form. If not all values of the form are valid, the condition and its message
// follow.
options! {
    /// Options of the runtime.
    ///
    /// Later versions add options: give some, and take the others from `..Config::default()`. The groups of
    /// options are alike.
    Config [] {
        /// Options of selection: which plan a call takes.
        selection: SelectionConfig;
        /// Options of shared memory.
        shm: ShmConfig;
        /// Options of TCP.
        tcp: TcpOptions;
        /// Options of RDMA.
        verbs: VerbsOptions;
        /// Options of waiting.
        polling: PollingConfig;
        /// Options of the log and the audit.
        log: LogConfig;
        /// Options of traces.
        trace: TraceConfig;
    } {
        /// transport between processes: auto, shm, tcp or verbs, or one within hosts and another one between
        /// them: shm+tcp, shm+verbs, or shm+auto, which is shm+verbs if RDMA connects all hosts, directly or
        /// along others, and shm+tcp if not (auto: shm, or shm+auto where ranks reach the rendezvous over
        /// TCP)
        transport: Transport = Transport::Auto, "TBCCL_TRANSPORT", job, Plain;
        /// seconds that an operation may wait without progress, and ranks for each other at the start (30)
        timeout: Duration = Duration::from_secs(30), "TBCCL_TIMEOUT", rank, Seconds,
            |time| !time.is_zero() => "must be a positive number of seconds";
        /// address space for registered memory per rank (16G; 1G where a device must know it beforehand);
        /// memory is taken up only as it is used
        slab_bytes: Option<u64> = None, "TBCCL_SLAB_BYTES", job, Auto<Bytes>,
            |bytes| bytes.is_none_or(|bytes| (1 << 20..=1 << 40).contains(&bytes)) => "must be from 1M to 1T";
        /// order in which contributions are combined: fast, or reproducible: the same bits for every
        /// algorithm, size and transport (fast)
        numerics: Numerics = Numerics::Fast, "TBCCL_NUMERICS", job, Plain;
        /// smallest operation whose registered memory is moved without a copy (4096; within a host, memory
        /// into which the operation combines is copied up to larger messages, by calibration)
        direct_min_bytes: Option<u64> = None, "TBCCL_DIRECT_MIN_BYTES", job, Auto<Bytes>;
        /// smallest result that a rank writes past the caches, the parts of it that no step of the call reads
        /// (half of the last level of caches, 1M at least; no result where the processor has no such stores)
        stream_min_bytes: Option<usize> = None, "TBCCL_STREAM_MIN_BYTES", rank, Auto<Bytes>;
        /// 1 to measure the machine in its first job that shares memory, and use the results in later ones;
        /// 0 for the defaults, see docs/tuning.md (1)
        calibrate: bool = true, "TBCCL_CALIBRATE", job, Flag;
        /// file for the results of the calibration (a file in $XDG_CACHE_HOME/tbccl or ~/.cache/tbccl, on
        /// macOS ~/Library/Caches/tbccl)
        calibration: Option<PathBuf> = None, "TBCCL_CALIBRATION", rank, Auto<FilePath>;
        /// threads that one rank may use to reduce large chunks (cores / ranks of this host)
        reduce_threads: Option<u32> = None, "TBCCL_REDUCE_THREADS", rank, Auto<Plain>;
        /// name of this host where one machine stands for several: ranks with different names share no memory
        /// (none)
        host_id: String = String::new(), "TBCCL_HOST_ID", rank, Text;
        /// folder for the latest calls of a rank that fails, as lines of JSON in tbccl-rank0-pid1234.jsonl;
        /// SIGUSR2 writes them as well (none)
        dump: Option<PathBuf> = None, "TBCCL_DUMP", rank, Auto<FilePath>;
        /// file to which the rank whose time limit passes first appends what all ranks wait for, see
        /// docs/hangs.md (stderr)
        hang_report: Option<PathBuf> = None, "TBCCL_HANG_REPORT", rank, Auto<FilePath>;
        /// port, or address and port, at which one rank of each host serves the metrics of all of its ranks
        /// to Prometheus, see docs/metrics.md; a port alone is one of the loopback interface (none)
        metrics: Option<MetricsAddress> = None, "TBCCL_METRICS", rank, Auto<Plain>;
        /// groups that tbccl.mlx.install() gives on Linux: auto, those that it compiles against MLX where all
        /// ranks can, or off, those of MLX's MPI interface, see docs/mlx.md (auto)
        mlx_native: MlxNative = MlxNative::Auto, "TBCCL_MLX_NATIVE", rank, Plain;
    }

    /// Options of selection: which plan a call takes.
    SelectionConfig [selection] {} {
        /// algorithms for collectives that have them, instead of the automatic choice: the first of ring,mesh
        /// that can do a call; or none of those in ^ring,mesh
        algorithm: Option<String> = None, "TBCCL_ALGO", job, Auto<AlgorithmNames>;
        /// file of rules: which algorithm for which calls, see docs/selection.md; the first rule that matches
        /// decides
        rules: Vec<Rule> = Vec::new(), "TBCCL_RULES", job, RulesFile;
        /// file written by `tbccl tune`: the best algorithms on these links; ignored on other links
        tuned: Option<Tuned> = None, "TBCCL_TUNING", job, Auto<TuningFile>;
        /// file that describes the machines and cables, with costs: calls that were not measured are chosen
        /// by simulation, see docs/selection.md (thresholds)
        model: Option<Model> = None, "TBCCL_MODEL", job, Auto<ModelFile>;
        /// segments per chunk for pipelining, instead of the automatic choice (0)
        segments: u32 = 0, "TBCCL_SEGMENTS", job, Plain;
        /// cores that the ranks of a host share: with more ranks than cores, plans of fewer messages or
        /// waits are chosen (all that the host has; a container may have fewer)
        cores: Option<u32> = None, "TBCCL_CORES", job, Auto<Plain>;
    }

    /// Options of shared memory.
    ShmConfig [shm] {} {
        /// staging bytes per pair of ranks and direction; a multiple of the piece, 4 pieces at least, 1G at
        /// most (256K to 8M, by the number of ranks and the caches of the machine)
        staging_bytes: Option<usize> = None, "TBCCL_STAGING_BYTES", job, Auto<Bytes>;
        /// largest piece to stage at a time; a multiple of 64
        piece_bytes: usize = RingLayout::default().piece_bytes, "TBCCL_PIECE_BYTES", job, Bytes,
            |bytes| *bytes > 0 && bytes.is_multiple_of(RingLayout::LINE)
                => "must be a positive multiple of 64";
        /// buffers of two pieces, per pair of ranks and direction, that change hands: a rank sends in those
        /// that it has received last, whose lines its core has, 16 at most (2 to 8, by the number of ranks)
        buffers: Option<u32> = None, "TBCCL_STAGING_BUFFERS", job, Auto<Plain>,
            |count| count.is_none_or(|count| count as usize <= RingLayout::MOST_BUFFERS)
                => "must be at most 16";
        /// how pieces are stored into staging areas: cached, fetched (cached, with lines fetched ahead),
        /// streamed past the caches, or auto, the fastest way by the processor and the time that pieces take;
        /// cached where the processor has no such stores (auto)
        stores: Stores = Stores::Auto, "TBCCL_STAGING_STORES", rank, Plain;
        /// 1 to read peers' memory by system call where allowed, 0 never to (1)
        pull: bool = true, "TBCCL_PULL", job, Flag;
        /// smallest message from unregistered memory that is read by system call instead of staged (by
        /// calibration for collectives in which ranks exchange and combine nothing, never for other calls)
        pull_min_bytes: Option<usize> = None, "TBCCL_PULL_MIN_BYTES", rank, Auto<Bytes>;
    }

    /// Options of TCP.
    TcpOptions [tcp] {} {
        /// interface or address of this host for connections over TCP, e.g. eth0 or 10.0.0.1 (the address
        /// from which the rendezvous is reached)
        interface: Option<Bind> = None, "TBCCL_INTERFACE", rank, Auto<Interface>;
        /// interfaces that lead to one other host each, which connections to that host use: names, e.g.
        /// thunderbolt*, and addresses with commas between them; off for none; auto for Thunderbolt
        /// interfaces and IPv4 networks of two hosts (auto; off with TBCCL_INTERFACE)
        cables: Option<CableSelection> = None, "TBCCL_CABLES", rank, OrNothing<Plain>;
        /// whether collectives between hosts without a cable use the network that they met on: always,
        /// never, or auto, only if the cables leave some hosts apart, and otherwise go along other hosts; a
        /// program's own messages use it unless never (auto)
        lan: Lan = Lan::Auto, "TBCCL_LAN", job, Plain;
        /// whether TCP connections that break are replaced: always, never, or auto, between ranks with a
        /// cable and another path (auto)
        resume: Resume = Resume::Auto, "TBCCL_TCP_RESUME", job, Plain;
        /// protection of connections over TCP: authenticate, or encrypt as well (authenticate)
        security: Security = Security::Authenticate, "TBCCL_SECURITY", job, Protection;
        /// TCP connections side by side per lane between two ranks, 1 to 16 (1 within a host, 2 between
        /// hosts)
        sockets: Option<u32> = None, "TBCCL_TCP_SOCKETS", job, Auto<Plain>,
            |count| count.is_none_or(|count| (1..=TcpConfig::MAX_SOCKETS).contains(&count))
                => "must be from 1 to 16";
        /// bytes that the system may hold for each direction of a TCP connection, 256K to 1G (the system
        /// decides)
        buffer_bytes: Option<usize> = None, "TBCCL_TCP_BUFFER_BYTES", rank, Auto<Bytes>,
            |bytes| bytes.is_none_or(|bytes| (256 << 10..=1 << 30).contains(&bytes))
                => "must be from 256K to 1G";
        /// seconds that a host may leave an answer over TCP owing before it is taken for dead, 1.4 to 60
        /// (15)
        peer_timeout: Duration = PEER_TIMEOUT, "TBCCL_SILENCE", job, Seconds,
            |time| (PEER_TIMEOUT_MIN..=PEER_TIMEOUT_MAX).contains(time) => "must be from 1.4 to 60 seconds";
    }

    /// Options of RDMA.
    VerbsOptions [verbs] {
        /// Devices between each two ranks by a program that has them in memory; they count before the file.
        named: NamedDevices;
    } {
        /// verbs library to load, by path (librdma.dylib on macOS, libibverbs.so.1 elsewhere)
        library: Option<PathBuf> = None, "TBCCL_VERBS_LIB", rank, Auto<FilePath>;
        /// JSON file with the RDMA devices between each two ranks, as JACCL_IBV_DEVICES and MLX_IBV_DEVICES,
        /// which are read where this is not set (discovery)
        devices: Option<PathBuf> = None, "TBCCL_IBV_DEVICES", rank, Auto<FilePath>;
        /// RDMA devices to use, by name, e.g. rdma_en*,^rdma_en5, where no file names them; ^ leaves out
        /// (all)
        selection: Option<DeviceSelection> = None, "TBCCL_RDMA_DEVICES", rank, Auto<Plain>;
        /// index of the GID to connect from, on every RDMA device of the rank (IPv4 first, RoCE v2 before v1)
        gid_index: Option<u8> = None, "TBCCL_GID_INDEX", rank, Auto<Plain>;
        /// service level of RDMA packets, 0 to 15; the priority on Ethernet (0)
        service_level: u8 = 0, "TBCCL_SERVICE_LEVEL", job, Plain,
            |level| *level < 16 => "must be from 0 to 15";
        /// traffic class of RDMA packets, 0 to 255: DSCP and ECN bits of RoCE v2 (0)
        traffic_class: u8 = 0, "TBCCL_TRAFFIC_CLASS", job, Plain;
        /// rc for reliable RDMA connections, uc for unreliable ones (rc where all devices have it)
        reliable: Option<bool> = None, "TBCCL_RDMA_SERVICE", job, Auto<Service>;
        /// 1 for checksums over everything that travels by RDMA, 0 for none (1 on unreliable connections)
        checksum: Option<bool> = None, "TBCCL_CHECKSUM", job, Auto<Flag>;
        /// largest piece of a message to send by RDMA at a time; a multiple of 4096 (128K)
        piece_bytes: u64 = 128 << 10, "TBCCL_RDMA_PIECE_BYTES", job, Bytes,
            |bytes| (1..=16 << 20).contains(bytes) && bytes.is_multiple_of(4096)
                => "must be a multiple of 4096, 16M at most";
        /// pieces under way from one rank to another on a lane, 1 to 16 (8)
        window: u32 = 8, "TBCCL_RDMA_WINDOW", job, Plain,
            |count| (1..=16).contains(count) => "must be from 1 to 16";
        /// bytes of a memory region that is registered with a device; a power of two up to 1G (256M)
        segment_bytes: u64 = 256 << 20, "TBCCL_SEGMENT_BYTES", job, Bytes,
            |bytes| bytes.is_power_of_two() && (1 << 20..=1 << 30).contains(bytes)
                => "must be a power of two from 1M to 1G";
        /// regions of memory passed to Communicator::register that a device holds at a time (256)
        cache_regions: u32 = 256, "TBCCL_CACHE_REGIONS", rank, Plain;
        /// bytes of memory passed to Communicator::register that a device holds at a time (16G)
        cache_bytes: u64 = 16 << 30, "TBCCL_CACHE_BYTES", rank, Bytes;
        /// seconds without a call after which idle RDMA connections are kept alive, 0.01 at least (60)
        keep_alive: Duration = Duration::from_secs(60), "TBCCL_KEEP_ALIVE", job, Seconds,
            |time| *time >= Duration::from_millis(10) => "must be a number of seconds, 0.01 at least";
        /// seconds that a job waits for a cable when no cable to a rank works any more; 0 to fail at once
        /// (10)
        cable_wait: Duration = Duration::from_secs(10), "TBCCL_CABLE_WAIT", job, Seconds;
        /// seconds that a choice between RDMA and TCP waits for the addresses of RDMA ports that are up; 0
        /// for none (30)
        address_wait: Duration = Duration::from_secs(30), "TBCCL_ADDRESS_WAIT", rank, Seconds;
    }

    /// Options of waiting.
    PollingConfig [polling] {} {
        /// fruitless polls before the core is yielded (2000; 0 with more ranks than cores; 300 for ranks of
        /// MLX with fewer than two cores each)
        spin_polls: Option<u32> = None, "TBCCL_SPIN_POLLS", rank, Auto<Plain>;
        /// completions to take from an RDMA device's queue at a time, 4 to 16 (16)
        batch: u32 = 16, "TBCCL_POLL_BATCH", rank, Plain,
            |count| (4..=16).contains(count) => "must be from 4 to 16";
        /// microseconds between polls of an RDMA device's queue while spinning, 0 to 10 (0)
        interval: Duration = Duration::ZERO, "TBCCL_POLL_INTERVAL_US", rank, Microseconds,
            |time| *time <= Duration::from_micros(10) => "must be from 0 to 10";
        /// 1 to sleep until the RDMA device wakes the rank when a wait gets long, 0 to poll (1 where the
        /// device can)
        events: Option<bool> = None, "TBCCL_POLL_EVENTS", rank, Auto<Flag>;
        /// fill of an RDMA device's queue above which it is polled and not slept on, in percent of its depth
        /// (50)
        event_percent: u32 = 50, "TBCCL_POLL_EVENT_PERCENT", rank, Plain,
            |percent| *percent <= 100 => "must be from 0 to 100";
    }

    /// Options of the log and the audit.
    LogConfig [log] {} {
        /// events to log: error, warn, info, debug or trace, or levels of targets, as
        /// info,tbccl::verbs=debug; see docs/log.md (no log; warnings go to stderr)
        filter: Option<Filter> = None, "TBCCL_LOG", rank, Auto<Plain>;
        /// file of the log; %r, %h and %p stand for rank, host and process (stderr)
        file: Option<PathBuf> = None, "TBCCL_LOG_FILE", rank, Auto<FilePath>;
        /// form of the log: text, or json for one object per line (text)
        format: Format = Format::Text, "TBCCL_LOG_FORMAT", rank, Plain;
        /// file to which each process appends who joined and who was refused, as lines of JSON, see
        /// docs/security.md (none)
        audit: Option<PathBuf> = None, "TBCCL_AUDIT", rank, Auto<FilePath>;
    }

    /// Options of traces.
    TraceConfig [trace] {} {
        /// folder for a trace of each rank's calls, messages and waits, for Perfetto and `tbccl trace`, see
        /// docs/trace.md (none)
        folder: Option<PathBuf> = None, "TBCCL_TRACE", rank, Auto<FilePath>;
        /// latest events that a rank keeps for its trace, 16 to 16777216, 64 bytes each (131072)
        events: u32 = 1 << 17, "TBCCL_TRACE_EVENTS", rank, Plain,
            |count| (16..=1 << 24).contains(count) => "must be from 16 to 16777216";
    }
}
