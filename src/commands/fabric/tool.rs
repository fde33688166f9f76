//! The program `softrdma` and the library `libsoftrdma.so`, which are installed beside this program.

use super::CommandError;
use serde::Deserialize;
use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Output},
};

/// Ways to replace a program's libibverbs.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(in crate::commands) enum Inject {
    /// LD_PRELOAD: for any program and any version of libibverbs, which must be installed
    Preload,
    /// LD_LIBRARY_PATH: also for programs that open the library by name; libibverbs need not be installed
    LibraryPath,
}

/// The paths of the program and the library.
#[derive(Debug)]
pub(in crate::commands) struct Tool {
    program: PathBuf,
    library: PathBuf,
}

/// The nodes of a fabric file, as `softrdma nodes` prints them.
#[derive(Debug, Deserialize)]
pub(in crate::commands) struct FabricNodes {
    nodes: Vec<FabricNode>,
}

#[derive(Debug, Deserialize)]
struct FabricNode {
    name: String,
    devices: Vec<FabricDevice>,
}

#[derive(Debug, Deserialize)]
struct FabricDevice {
    name: String,
    /// The port at the other end of its cable.
    peer: Option<String>,
}

impl FabricNodes {
    /// Returns the number of nodes.
    pub(in crate::commands) fn count(&self) -> u32 {
        self.nodes.len() as u32
    }

    /// Returns the cables between nodes: the ports at both ends, and the numbers of their nodes.
    pub(in crate::commands) fn cables(&self) -> Vec<[(String, u32); 2]> {
        let mut cables = Vec::new();
        for (node, number) in self.nodes.iter().zip(0..) {
            for device in &node.devices {
                let peer = device.peer.clone().unwrap_or_default();
                let there = self.nodes.iter().position(|other| peer.starts_with(&format!("{}/", other.name)));
                if let Some(there) = there.filter(|there| *there as u32 > number) {
                    cables.push([(format!("{}/{}", node.name, device.name), number), (peer, there as u32)]);
                }
            }
        }
        cables
    }
}

/// Environment variables of one node.
pub(in crate::commands) type Variables = BTreeMap<String, String>;

impl Tool {
    /// Finds the tool beside this program or in its `deps`, where cargo builds it; `SOFTRDMA_LIB` names
    /// another library.
    pub(in crate::commands) fn find() -> Result<Tool, CommandError> {
        let here = std::env::current_exe().map_err(CommandError::new)?;
        let library = match std::env::var_os("SOFTRDMA_LIB").filter(|path| !path.is_empty()) {
            Some(path) => PathBuf::from(path),
            None => beside(&here, "libsoftrdma.so")?,
        };
        Ok(Tool { program: beside(&here, "softrdma")?, library })
    }

    /// Returns the absolute path of the library.
    pub(in crate::commands) fn library(&self) -> Result<PathBuf, CommandError> {
        std::path::absolute(&self.library).map_err(CommandError::new)
    }

    /// Returns a command of the tool that prints messages under the name `tbccl`.
    fn command(&self, command: &str) -> Command {
        let mut tool = Command::new(&self.program);
        tool.arg0("tbccl").arg(command);
        tool
    }

    /// Runs a command of the tool and returns its exit status. The tool reports its own errors.
    pub(super) fn forward(
        &self,
        command: &str,
        dir: Option<&Path>,
        args: &[OsString],
    ) -> Result<ExitCode, CommandError> {
        let mut tool = self.command(command);
        if let Some(dir) = dir {
            tool.arg("--dir").arg(dir);
        }
        let status = tool.args(args).status().map_err(|error| self.cannot_start(&error))?;
        Ok(ExitCode::from(
            status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(CommandError::STATUS),
        ))
    }

    /// Runs a command of the tool about a running fabric, and returns its error.
    pub(in crate::commands) fn run(
        &self,
        command: &str,
        dir: &Path,
        args: &[OsString],
    ) -> Result<(), CommandError> {
        let output = self.command(command).arg("--dir").arg(dir).args(args).output();
        let output = output.map_err(|error| self.cannot_start(&error))?;
        if output.status.success() { Ok(()) } else { Err(error_of(&output)) }
    }

    /// Returns the variables of one or all nodes of a fabric. Without `dir` they name the folder that equal
    /// fabric files share, which is created if it does not exist.
    pub(in crate::commands) fn environments(
        &self,
        fabric: &Path,
        node: Option<&OsStr>,
        dir: Option<&Path>,
        inject: Inject,
    ) -> Result<Vec<Variables>, CommandError> {
        let mut tool = self.command("env");
        tool.args(["--json", "--fabric"]).arg(fabric).arg("--lib").arg(&self.library);
        if let Inject::LibraryPath = inject {
            tool.args(["--inject", "library-path"]);
        }
        for (option, value) in [("--node", node), ("--dir", dir.map(Path::as_os_str))] {
            if let Some(value) = value {
                tool.arg(option).arg(value);
            }
        }
        let output = tool.output().map_err(|error| self.cannot_start(&error))?;
        if !output.status.success() {
            return Err(error_of(&output));
        }
        serde_json::from_slice(&output.stdout).map_err(|error| {
            CommandError::new(format_args!("{} is of another version: {error}", self.program.display()))
        })
    }

    /// Returns the nodes of a fabric file.
    pub(in crate::commands) fn nodes(&self, fabric: &Path) -> Result<FabricNodes, CommandError> {
        let output = self.command("nodes").arg("--json").arg(fabric).output();
        let output = output.map_err(|error| self.cannot_start(&error))?;
        if !output.status.success() {
            return Err(error_of(&output));
        }
        serde_json::from_slice(&output.stdout).map_err(CommandError::new)
    }

    fn cannot_start(&self, error: &std::io::Error) -> CommandError {
        CommandError::new(format_args!("{} can't be started: {error}", self.program.display()))
    }
}

/// Returns the error that the tool has printed.
fn error_of(output: &Output) -> CommandError {
    let text = String::from_utf8_lossy(&output.stderr);
    CommandError::new(text.trim().trim_start_matches("tbccl: error: "))
}

fn beside(program: &Path, name: &str) -> Result<PathBuf, CommandError> {
    let folder = program.parent().unwrap_or(Path::new("."));
    let places = [folder.join(name), folder.join("deps").join(name)];
    places.into_iter().find(|place| place.is_file()).ok_or_else(|| {
        CommandError::new(format_args!(
            "no {name} in {}; build it with `cargo build -p tbccl-softrdma`",
            folder.display()
        ))
    })
}
