//! Options of the runtime, read once from the environment and passed down as a value.
//!
//! | module | purpose |
//! |---|---|
//! | `table` | the declaration of every option |
//! | `devices` | RDMA devices that a program names |
//! | `forms` | how values are read and written |
//! | `mlx` | which groups MLX gets |
//! | `transport` | names of transports |
//!
//! This module reads the environment, and checks options that depend on each other. Nothing below the
//! constructors of a communicator reads the environment.

mod devices;
mod forms;
mod mlx;
mod table;
mod transport;

pub use devices::NamedDevices;
pub use mlx::MlxNative;
pub use table::{
    Config, ConfigOption, LogConfig, OPTIONS, PollingConfig, SelectionConfig, ShmConfig, TcpOptions,
    TraceConfig, VerbsOptions,
};
pub use transport::Transport;

use crate::{Error, calibration::default_path, error::Result};
use collectives::{
    UnknownName,
    select::{Fingerprint, Names, Overrides, Policy, Tuning},
};
use events::LogOptions;
use std::{collections::BTreeMap, path::PathBuf};

/// Variables of MLX and JACCL that name the file of a device matrix.
///
/// The first that is set counts, as in JACCL.
const MATRICES: [&str; 2] = ["JACCL_IBV_DEVICES", "MLX_IBV_DEVICES"];

/// Variables that tell a rank who it is; set by the launcher, not options.
pub const IDENTITY: &[&str] = &[
    "TBCCL_RANK",
    "TBCCL_SIZE",
    "TBCCL_LOCAL_RANK",
    "TBCCL_LOCAL_SIZE",
    "TBCCL_NODE_RANK",
    "TBCCL_JOB",
    "TBCCL_BOOTSTRAP",
    "TBCCL_SECRET",
    "TBCCL_SECRET_FILE",
    "TBCCL_ROOT",
];

/// Variables that other parts of this project read: `tbccl.mlx`, whether it replaces functions of MLX.
const READ_ELSEWHERE: &[&str] = &["TBCCL_MLX"];

/// Prefix of the variables of this project's own tests, whose programs inherit them.
const OF_TESTS: &str = "TBCCL_TEST_";

impl Config {
    /// Smallest operation whose registered memory is moved without a copy, where no option sets it.
    pub(crate) const DIRECT_MIN_BYTES: u64 = 4096;

    /// Default address space for registered memory, in bytes per rank; untouched memory costs nothing.
    pub const SLAB_BYTES: u64 = 16 << 30;

    /// Reads the options from variables; other options keep their defaults.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an invalid value, [`Error::UnknownName`] for a `TBCCL_` variable that
    /// nothing reads.
    pub fn from_vars(vars: impl IntoIterator<Item = (String, String)>) -> Result<Config> {
        let mut config = Config::default();
        let (vars, others): (Vec<_>, Vec<_>) =
            vars.into_iter().partition(|(name, _)| name.starts_with("TBCCL_"));
        let matrix = MATRICES.iter().find_map(|name| others.iter().find(|(given, _)| given == name));
        config.verbs.devices =
            matrix.map(|(_, path)| path.trim().into()).filter(|path| *path != PathBuf::new());
        for (name, value) in vars {
            let is_in = |names: &[&str]| names.contains(&name.as_str());
            if is_in(IDENTITY) || is_in(READ_ELSEWHERE) || name.starts_with(OF_TESTS) {
                continue;
            }
            let Some(option) = OPTIONS.iter().find(|o| o.env == name) else {
                return Err(UnknownName::new("variable", &name, OPTIONS.iter().map(|o| o.env)).into());
            };
            (option.set)(&mut config, value.trim())
                .map_err(|why| Error::InvalidArgument(format!("{name}={value}: {why}; {}", option.doc)))?;
        }
        if config.calibration.is_none() && config.calibrate {
            let variable = |name: &str| others.iter().find(|(given, _)| given == name);
            config.calibration = default_path(|name| variable(name).map(|(_, value)| value.clone()));
        }
        config.check()?;
        Ok(config)
    }

    /// Reads the options from the process's environment.
    ///
    /// # Errors
    /// As for [`Config::from_vars`].
    pub fn from_env() -> Result<Config> {
        let vars =
            std::env::vars_os().filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)));
        Config::from_vars(vars)
    }

    /// Returns the options that must be equal on all ranks, as text.
    #[must_use]
    pub fn shared(&self) -> BTreeMap<String, String> {
        OPTIONS.iter().filter(|o| o.shared).map(|o| (o.env.to_owned(), (o.get)(self))).collect()
    }

    /// Opens the log and the audit of this process, if the options ask for them. A process with a log, or
    /// with a subscriber of `tracing` of its own, keeps that.
    ///
    /// # Errors
    /// [`Error::System`] if the file of the audit can't be opened.
    pub fn open_log(&self) -> Result<()> {
        let LogConfig { filter, file, format, audit } = &self.log;
        if let Some(filter) = filter.clone() {
            events::log(LogOptions { filter, file: file.clone(), format: *format });
        }
        let Some(path) = audit else { return Ok(()) };
        let failed = |error| Error::system(format!("opening the audit {}", path.display()), error);
        events::open_audit(path).map_err(failed)
    }

    /// Returns the policy by which plans are selected. Measurements of other machines are left out.
    pub(crate) fn policy(&self, here: &Fingerprint, tuning: Tuning, oversubscribed: bool) -> Policy {
        let SelectionConfig { algorithm, rules, tuned, model, .. } = &self.selection;
        let names = algorithm.as_deref().map(Names::parse).transpose().ok().flatten();
        let overrides = Overrides { names: names.unwrap_or_default(), rules: rules.clone() };
        let tuned = tuned.clone().filter(|tuned| tuned.fingerprint == *here);
        Policy { overrides, tuned, model: model.clone(), tuning, oversubscribed }
    }

    /// Checks options that depend on each other. Each value by itself was checked when it was read.
    fn check(&self) -> Result<()> {
        let ShmConfig { staging_bytes, piece_bytes, .. } = self.shm;
        let Some(staging_bytes) = staging_bytes else { return Ok(()) };
        let pieces = staging_bytes / piece_bytes;
        if !staging_bytes.is_multiple_of(piece_bytes) || pieces < 4 || staging_bytes > 1 << 30 {
            return Err(Error::InvalidArgument(format!(
                "TBCCL_STAGING_BYTES={staging_bytes}: must be a multiple of \
                 TBCCL_PIECE_BYTES={piece_bytes}, 4 pieces at \
                 least, 1G at most"
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn with(name: &str, value: &str) -> Result<Config> {
        Config::from_vars([(name.to_owned(), value.to_owned())])
    }

    #[test]
    fn a_misspelt_variable_is_an_error_with_a_suggestion() {
        let error = with("TBCCL_TIMEOUTS", "3").expect_err("no such variable");
        assert!(error.to_string().contains("did you mean `TBCCL_TIMEOUT`?"), "{error}");
    }

    #[test]
    fn a_variable_that_the_python_package_reads_is_no_unknown_one() {
        assert!(with("TBCCL_MLX", "on").is_ok());
    }

    #[test]
    fn the_device_matrix_of_mlx_is_ours_too() {
        let all =
            [("MLX_IBV_DEVICES", "/mlx"), ("JACCL_IBV_DEVICES", "/jaccl"), ("TBCCL_IBV_DEVICES", "/ours")];
        for (count, path) in [(1, "/mlx"), (2, "/jaccl"), (3, "/ours")] {
            let vars = all[..count].iter().rev().map(|(name, value)| ((*name).into(), (*value).into()));
            let config = Config::from_vars(vars).expect("paths");
            assert_eq!(config.verbs.devices.as_deref(), Some(std::path::Path::new(path)));
        }
        assert_eq!(with("JACCL_IBV_DEVICES", "").expect("empty").verbs.devices, None);
        assert_eq!(with("JACCL_IBV_DEVICES", "/j").expect("a path").verbs.devices, Some("/j".into()));
    }

    #[test]
    fn the_calibration_is_in_the_cache_folder_of_the_user_unless_an_option_says_where() {
        let of = |vars: &[(&str, &str)]| {
            let vars = vars.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            Config::from_vars(vars).expect("valid").calibration
        };
        let home = of(&[("HOME", "/home/me")]).expect("a folder");
        assert!(
            home.starts_with("/home/me") && home.extension().is_some_and(|end| end == "json"),
            "{home:?}"
        );
        assert_eq!(of(&[]), None, "there is no folder");
        assert_eq!(of(&[("HOME", "me")]), None, "it depends on the working directory");
        assert_eq!(of(&[("HOME", "/home/me"), ("TBCCL_CALIBRATE", "0")]), None);
        assert_eq!(of(&[("HOME", "/home/me"), ("TBCCL_CALIBRATION", "/x")]), Some("/x".into()));
        if !cfg!(target_vendor = "apple") {
            let cache = of(&[("HOME", "/home/me"), ("XDG_CACHE_HOME", "/fast")]).expect("a folder");
            assert!(cache.starts_with("/fast/tbccl"), "{cache:?}");
            assert!(home.starts_with("/home/me/.cache/tbccl"), "{home:?}");
        }
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
            ("TBCCL_LOG", "inof"),
            ("TBCCL_LOG", "tbccl::verb=debug"),
            ("TBCCL_LOG_FORMAT", "xml"),
            ("TBCCL_METRICS", "0"),
            ("TBCCL_METRICS", "localhost"),
        ] {
            let error = with(name, value).expect_err(value).to_string();
            assert!(error.contains(name), "{error}");
        }
        assert_eq!(with("TBCCL_TIMEOUT", "2.5").expect("valid").timeout, Duration::from_millis(2500));
        assert_eq!(
            with("TBCCL_SILENCE", "20.5").expect("valid").tcp.peer_timeout,
            Duration::from_millis(20_500)
        );
        assert_eq!(with("TBCCL_RANK", "3").expect("not an option"), Config::default());
        assert_eq!(with("TBCCL_TEST_RANKS", "3").expect("a test's"), Config::default());
    }
}
