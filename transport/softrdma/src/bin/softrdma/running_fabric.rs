//! A fabric's folder, as seen by somebody who takes no part.

use super::CliError;
use softrdma::{Observer, default_folder, fabric::Fabric};
use std::{
    fs,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
};

/// The fabric file's copy in the folder of a fabric: what its processes read, whatever happens to the original.
const FABRIC_FILE: &str = "fabric.toml";

/// The fabric a command works on.
#[derive(Debug, clap::Args)]
pub(crate) struct FabricArgs {
    /// The fabric's folder; the one that its file leads to when left out
    #[arg(long, value_name = "DIR", env = "SOFTRDMA_DIR")]
    dir: Option<PathBuf>,

    /// The fabric's file; the one in its folder when left out
    #[arg(long, value_name = "FILE", env = "SOFTRDMA_FABRIC")]
    fabric: Option<PathBuf>,
}

/// A fabric that may be running.
#[derive(Debug)]
pub(crate) struct RunningFabric {
    pub(crate) fabric: Fabric,
    pub(crate) observer: Observer,
}

impl RunningFabric {
    /// Makes the folder with a copy of the file, whose path is returned; or finds both there.
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
        // What travels over the fabric is nobody else's business.
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)
            .and_then(|()| fs::write(&copy, text))
            .map_err(|error| CliError::new(format_args!("can't make {}: {error}", copy.display())))?;
        Ok(copy)
    }

    /// Opens the fabric that is meant.
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
