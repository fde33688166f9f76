//! Options of the runtime: read once from the environment, by the table in `options`, and passed down as a value.

mod options;

pub use options::{ConfigOption, OPTIONS};

use crate::{Error, error::Result};
use collectives::{
    Numerics, UnknownName,
    select::{Fingerprint, Names, Overrides, Policy, Rule, Tuned, price::Model},
};
use std::{collections::BTreeMap, path::PathBuf, str::FromStr, time::Duration};
use transport::{
    driver::{
        SILENCE, SILENCE_MOST,
        tcp::{Bind, Security, TcpConfig},
    },
    ring::RingLayout,
};

/// What moves the bytes between processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Transport {
    /// The library chooses: shared memory, and what [`Transport::MixedAuto`] is where ranks have a secret, as those of
    /// several hosts do.
    #[default]
    Auto,
    /// Shared memory, for processes of one host.
    Shm,
    /// Any network.
    Tcp,
    /// Shared memory between processes of one host, TCP between hosts.
    Mixed,
    /// Shared memory between processes of one host, RDMA devices between hosts.
    MixedVerbs,
    /// Shared memory between processes of one host; between hosts RDMA devices if they connect every rank with those of
    /// all other hosts, and TCP if not.
    MixedAuto,
    /// RDMA devices.
    Verbs,
    /// For tests: shared memory, used as if there were none ([`transport::driver::rehearsal`]).
    Rehearsal,
}

impl Transport {
    /// What it is called; of [`Transport::Auto`], what it stands for.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Transport::Auto | Transport::Shm => "shm",
            Transport::Tcp => "tcp",
            Transport::Mixed => "shm+tcp",
            Transport::MixedVerbs => "shm+verbs",
            Transport::MixedAuto => "shm+auto",
            Transport::Verbs => "verbs",
            Transport::Rehearsal => "rehearsal",
        }
    }
}

impl FromStr for Transport {
    type Err = UnknownName;

    fn from_str(text: &str) -> std::result::Result<Transport, UnknownName> {
        match text {
            "" | "auto" => Ok(Transport::Auto),
            "shm" => Ok(Transport::Shm),
            "tcp" => Ok(Transport::Tcp),
            "shm+tcp" => Ok(Transport::Mixed),
            "shm+verbs" => Ok(Transport::MixedVerbs),
            "shm+auto" => Ok(Transport::MixedAuto),
            "verbs" => Ok(Transport::Verbs),
            "rehearsal" => Ok(Transport::Rehearsal),
            _ => Err(UnknownName::new("transport", text, TRANSPORTS)),
        }
    }
}

/// The names of transports, as people type them.
pub(crate) const TRANSPORTS: [&str; 7] = ["auto", "shm", "tcp", "shm+tcp", "verbs", "shm+verbs", "shm+auto"];

/// Options of the runtime.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// What moves the bytes between processes.
    pub transport: Transport,
    /// How long an operation may wait without progress, and how long ranks wait for each other at the start.
    pub timeout: Duration,
    /// Bytes of address space for registered memory, per rank; `None` for [`Config::SLAB_BYTES`], or less where a
    /// device must know all of it beforehand. Memory is taken up only as buffers are made.
    pub slab_bytes: Option<u64>,
    /// Algorithms to use for collectives that have them, instead of the selection's choice: names, of which the first that
    /// can do a call is taken, as `ring,mesh`; or those that are not to be chosen, as `^ring,chain`.
    pub algorithm: Option<String>,
    /// What is to be chosen for which calls; the first rule that matches decides.
    pub rules: Vec<Rule>,
    /// What was measured to be best on some links; used if they are those at hand.
    pub tuned: Option<Tuned>,
    /// The machines and cables, by which what was not measured is simulated; `None` leaves it to thresholds.
    pub model: Option<Model>,
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
    /// What is promised about the order in which contributions are combined.
    pub numerics: Numerics,
    /// Operations of at least this many bytes move registered memory without copying it.
    pub direct_min_bytes: u64,
    /// Fruitless polls before yielding; `None` lets the number of ranks and cores decide.
    pub spin_polls: Option<u32>,
    /// Cores that the ranks of a host share, as far as the choice of plans goes; `None` for all that it has. A container may
    /// have fewer.
    pub cores: Option<u32>,
    /// Threads that one rank may use to reduce; `None` for cores / ranks of this host.
    pub reduce_threads: Option<u32>,
    /// What this host is called where one machine stands for several: ranks of different names share no memory.
    pub host_id: String,
    /// Where to listen for connections of other ranks: an interface or an address; `None` for the address from which the
    /// rendezvous is reached.
    pub interface: Option<Bind>,
    /// What connections over TCP are protected against.
    pub security: Security,
    /// Connections per lane between two ranks; `None` lets the path decide.
    pub tcp_sockets: Option<u32>,
    /// Bytes that the system may hold for each direction of a connection; `None` lets the system decide.
    pub tcp_buffer_bytes: Option<usize>,
    /// After how long without an answer over TCP a host is taken for gone.
    pub silence: Duration,
    /// The verbs library to load, instead of the system's.
    pub verbs_lib: Option<PathBuf>,
    /// The file with the matrix of RDMA devices between ranks; `None` to find them out.
    pub ibv_devices: Option<PathBuf>,
    /// Reliable RDMA connections, or unreliable ones; `None` for reliable ones where all devices have them.
    pub reliable: Option<bool>,
    /// Checksums over all that travels by RDMA; `None` for checksums on unreliable connections.
    pub checksum: Option<bool>,
    /// Bytes of a piece of a message by RDMA.
    pub rdma_piece_bytes: u64,
    /// Pieces that may be under way between two ranks on a lane.
    pub rdma_window: u32,
    /// Bytes that are registered with a device at a time.
    pub segment_bytes: u64,
    /// Registrations of the program's own memory at a time, with each device: so many regions, and so many bytes.
    pub cache_regions: u32,
    /// See there.
    pub cache_bytes: u64,
    /// Completions taken from a device's queue at a time.
    pub poll_batch: u32,
    /// Time between polls of a device's queue while spinning, after the first hundred.
    pub poll_interval: Duration,
    /// Sleep until the device wakes us when a wait gets long; `None` where the device can.
    pub poll_events: Option<bool>,
    /// A queue fuller than this, in percent of its depth, is polled and not slept on.
    pub poll_event_percent: u32,
    /// After so long without a message, connections by RDMA are kept alive.
    pub keep_alive: Duration,
    /// The folder for flight recorders of communicators that fail.
    pub dump: Option<PathBuf>,
}

impl Default for Config {
    fn default() -> Config {
        let ring = RingLayout::default();
        Config {
            transport: Transport::Auto,
            timeout: Duration::from_secs(30),
            slab_bytes: None,
            algorithm: None,
            rules: Vec::new(),
            tuned: None,
            model: None,
            segments: 0,
            staging_bytes: ring.staging_bytes,
            piece_bytes: ring.piece_bytes,
            pull: true,
            pull_min_bytes: usize::MAX,
            numerics: Numerics::Fast,
            direct_min_bytes: 4096,
            spin_polls: None,
            cores: None,
            reduce_threads: None,
            host_id: String::new(),
            interface: None,
            security: Security::Authenticate,
            tcp_sockets: None,
            tcp_buffer_bytes: None,
            silence: SILENCE,
            verbs_lib: None,
            ibv_devices: None,
            reliable: None,
            checksum: None,
            rdma_piece_bytes: 128 << 10,
            rdma_window: 8,
            segment_bytes: 256 << 20,
            cache_regions: 256,
            cache_bytes: 16 << 30,
            poll_batch: 16,
            poll_interval: Duration::ZERO,
            poll_events: None,
            poll_event_percent: 50,
            keep_alive: Duration::from_secs(60),
            dump: None,
        }
    }
}

/// Where other programs look for the path of a device matrix.
const MATRICES: [&str; 2] = ["MLX_IBV_DEVICES", "JACCL_IBV_DEVICES"];

/// Variables that tell a rank who it is; set by the launcher, not options.
pub const IDENTITY: &[&str] = &[
    "TBCCL_RANK",
    "TBCCL_SIZE",
    "TBCCL_LOCAL_RANK",
    "TBCCL_LOCAL_SIZE",
    "TBCCL_NODE_RANK",
    "TBCCL_BOOTSTRAP",
    "TBCCL_SECRET",
    "TBCCL_SECRET_FILE",
    "TBCCL_ROOT",
];

impl Config {
    /// Bytes of address space for registered memory, per rank, when nothing else is said.
    pub const SLAB_BYTES: u64 = 16 << 30;

    /// The options that these variables set; others keep their defaults.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a value that cannot be, [`Error::UnknownName`] for a `TBCCL_` variable that
    /// nothing reads.
    pub fn from_vars(vars: impl IntoIterator<Item = (String, String)>) -> Result<Config> {
        let mut config = Config::default();
        let (vars, others): (Vec<_>, Vec<_>) =
            vars.into_iter().partition(|(name, _)| name.starts_with("TBCCL_"));
        let matrix = MATRICES.iter().find_map(|name| others.iter().find(|(given, _)| given == name));
        config.ibv_devices =
            matrix.map(|(_, path)| path.trim().into()).filter(|path| *path != PathBuf::new());
        for (name, value) in vars {
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

    /// What decides which plan a call takes. What was measured elsewhere is not part of it.
    pub(crate) fn policy(&self, here: &Fingerprint, crowded: bool) -> Policy {
        let names = self.algorithm.as_deref().map(Names::parse).transpose().ok().flatten();
        let overrides = Overrides { names: names.unwrap_or_default(), rules: self.rules.clone() };
        let tuned = self.tuned.clone().filter(|tuned| tuned.fingerprint == *here);
        Policy { overrides, tuned, model: self.model.clone(), crowded, ..Policy::default() }
    }

    pub(crate) fn ring(&self) -> RingLayout {
        RingLayout { cells: 256, staging_bytes: self.staging_bytes, piece_bytes: self.piece_bytes }
    }

    fn check(&self) -> Result<()> {
        let bad = |why: String| Err(Error::InvalidArgument(why));
        if let Some(names) = &self.algorithm {
            Names::parse(names)
                .map_err(|error| Error::InvalidArgument(format!("TBCCL_ALGO={names}: {error}")))?;
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
        let piece = self.rdma_piece_bytes;
        if piece == 0 || !piece.is_multiple_of(4096) || piece > 16 << 20 {
            return bad(format!("TBCCL_RDMA_PIECE_BYTES={piece}: must be a multiple of 4096, 16M at most"));
        }
        if let Some(count) = self.tcp_sockets
            && !(1..=TcpConfig::MOST_SOCKETS).contains(&count)
        {
            return bad(format!("TBCCL_TCP_SOCKETS={count}: must be from 1 to {}", TcpConfig::MOST_SOCKETS));
        }
        if let Some(bytes) = self.tcp_buffer_bytes
            && !(256 << 10..=1 << 30).contains(&bytes)
        {
            return bad(format!("TBCCL_TCP_BUFFER_BYTES={bytes}: must be from 256K to 1G"));
        }
        if !(SILENCE..=SILENCE_MOST).contains(&self.silence) {
            return bad(format!(
                "TBCCL_SILENCE={}: must be from {} to {} seconds",
                self.silence.as_secs_f64(),
                SILENCE.as_secs_f64(),
                SILENCE_MOST.as_secs_f64()
            ));
        }
        if !(4..=16).contains(&self.poll_batch) {
            return bad(format!("TBCCL_POLL_BATCH={}: must be from 4 to 16", self.poll_batch));
        }
        if self.poll_interval > Duration::from_micros(10) {
            return bad(format!(
                "TBCCL_POLL_INTERVAL_US={}: must be from 0 to 10",
                self.poll_interval.as_secs_f64() * 1e6
            ));
        }
        if self.poll_event_percent > 100 {
            return bad(format!(
                "TBCCL_POLL_EVENT_PERCENT={}: must be from 0 to 100",
                self.poll_event_percent
            ));
        }
        if !(1..=16).contains(&self.rdma_window) {
            return bad(format!("TBCCL_RDMA_WINDOW={}: must be from 1 to 16", self.rdma_window));
        }
        let segment = self.segment_bytes;
        if !segment.is_power_of_two() || !(1 << 20..=1 << 30).contains(&segment) {
            return bad(format!("TBCCL_SEGMENT_BYTES={segment}: must be a power of two from 1M to 1G"));
        }
        if let Some(bytes) = self.slab_bytes
            && !(1 << 20..=1 << 40).contains(&bytes)
        {
            return bad(format!("TBCCL_SLAB_BYTES={bytes}: must be from 1M to 1T"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &str, value: &str) -> Result<Config> {
        Config::from_vars([(name.to_owned(), value.to_owned())])
    }

    #[test]
    fn a_misspelt_variable_is_an_error_with_a_suggestion() {
        let error = with("TBCCL_TIMEOUTS", "3").expect_err("no such variable");
        assert!(error.to_string().contains("did you mean `TBCCL_TIMEOUT`?"), "{error}");
    }

    #[test]
    fn the_device_matrix_of_mlx_is_ours_too() {
        let all =
            [("MLX_IBV_DEVICES", "/mlx"), ("JACCL_IBV_DEVICES", "/jaccl"), ("TBCCL_IBV_DEVICES", "/ours")];
        for (count, path) in [(1, "/mlx"), (2, "/mlx"), (3, "/ours")] {
            let vars = all[..count].iter().rev().map(|(name, value)| ((*name).into(), (*value).into()));
            let config = Config::from_vars(vars).expect("paths");
            assert_eq!(config.ibv_devices.as_deref(), Some(std::path::Path::new(path)));
        }
        assert_eq!(with("JACCL_IBV_DEVICES", "").expect("empty").ibv_devices, None);
        assert_eq!(with("JACCL_IBV_DEVICES", "/j").expect("a path").ibv_devices, Some("/j".into()));
    }

    #[test]
    fn impossible_values_are_errors_that_name_the_variable() {
        for (name, value) in [
            ("TBCCL_TIMEOUT", "0"),
            ("TBCCL_TIMEOUT", "soon"),
            ("TBCCL_PIECE_BYTES", "100"),
            ("TBCCL_STAGING_BYTES", "32K"),
            ("TBCCL_PULL", "yes"),
            ("TBCCL_TRANSPORT", "verb"),
            ("TBCCL_SLAB_BYTES", "1"),
            ("TBCCL_SECURITY", "none"),
            ("TBCCL_TCP_SOCKETS", "0"),
            ("TBCCL_TCP_SOCKETS", "17"),
            ("TBCCL_TCP_BUFFER_BYTES", "4K"),
            ("TBCCL_SILENCE", "1.3"),
            ("TBCCL_SILENCE", "61"),
            ("TBCCL_SILENCE", "-1"),
            ("TBCCL_SILENCE", "NaN"),
        ] {
            let error = with(name, value).expect_err(value).to_string();
            assert!(error.contains(name), "{error}");
        }
        assert_eq!(with("TBCCL_TIMEOUT", "2.5").expect("valid").timeout, Duration::from_millis(2500));
        assert_eq!(with("TBCCL_SILENCE", "20.5").expect("valid").silence, Duration::from_millis(20_500));
        assert_eq!(with("TBCCL_RANK", "3").expect("not an option"), Config::default());
    }
}
