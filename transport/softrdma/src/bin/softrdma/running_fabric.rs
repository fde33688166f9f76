//! A running fabric's folder, for commands that take no part in the fabric.

use super::CliError;
use softrdma::{Observer, default_folder, fabric::Fabric};
use std::{
    fs,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
};

/// The copy of the fabric file in the fabric's folder. Processes read this copy, so the original may change.
const FABRIC_FILE: &str = "fabric.toml";

/// The arguments that select a fabric.
#[derive(Debug, clap::Args)]
pub(crate) struct FabricArgs {
    /// The fabric's folder; by default the one that belongs to its file
    #[arg(long, value_name = "DIR", env = "SOFTRDMA_DIR")]
    dir: Option<PathBuf>,

    /// The fabric file; by default the one in the folder
    #[arg(long, value_name = "FILE", env = "SOFTRDMA_FABRIC")]
    fabric: Option<PathBuf>,
}

/// A fabric file and its folder; processes may or may not be running.
#[derive(Debug)]
pub(crate) struct RunningFabric {
    pub(crate) fabric: Fabric,
    pub(crate) observer: Observer,
}

impl RunningFabric {
    /// Creates the folder with a copy of the fabric file, unless both exist, and returns the path of the
    /// copy.
    pub(crate) fn prepare(dir: &Path, text: &str) -> Result<PathBuf, CliError> {
        let copy = dir.join(FABRIC_FILE);
        if dir.metadata().is_ok_and(|about| about.uid() != rustix::process::getuid().as_raw()) {
            return Err(CliError::new(format_args!(
                "{} belongs to another user; name another folder with --dir",
                dir.display()
            )));
        }
        match fs::read_to_string(&copy) {
            Ok(there) if there == text => return Ok(copy),
            Ok(_) => {
                return Err(CliError::new(format_args!(
                    "{} belongs to another fabric; name another folder with --dir, or remove it",
                    dir.display()
                )));
            }
            Err(_) => {}
        }
        // Other users may not read the fabric's messages.
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)
            .and_then(|()| fs::write(&copy, text))
            .map_err(|error| CliError::new(format_args!("can't make {}: {error}", copy.display())))?;
        Ok(copy)
    }

    /// Opens the selected fabric.
    pub(crate) fn open(args: &FabricArgs) -> Result<RunningFabric, CliError> {
        let file = match (&args.fabric, &args.dir) {
            (Some(file), _) => file.clone(),
            (None, Some(dir)) => dir.join(FABRIC_FILE),
            (None, None) => {
                return Err(CliError::new(
                    "no fabric is named; pass its folder with --dir, or its file with --fabric",
                ));
            }
        };
        let fabric = Fabric::load(&file).map_err(CliError::new)?;
        let dir = args.dir.clone().unwrap_or_else(|| default_folder(fabric.digest));
        if !dir.is_dir() {
            return Err(CliError::new(format_args!(
                "the fabric is not running: there is no {}",
                dir.display()
            )));
        }
        let observer = Observer::open(&dir, fabric.digest).map_err(CliError::new)?;
        Ok(RunningFabric { fabric, observer })
    }
}
