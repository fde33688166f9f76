//! Software devices of a round, and their faults.

use super::CommandError;
use crate::commands::{
    chaos::{plan::Round, settings::FabricChoice},
    fabric::{Inject, Tool, Variables},
};
use std::{ffi::OsString, fs, os::unix::process::CommandExt, path::Path, process::Command};

/// Name of the folder that the processes of a fabric share.
pub(super) const FOLDER: &str = "fabric";

/// Returns the path of the file with the variables of a process.
pub(in crate::commands::chaos) fn variables_file(folder: &Path, number: u32) -> std::path::PathBuf {
    folder.join(format!("variables.{number}"))
}

/// Makes the fabric of a round, if it has one, and writes the variables of each process to a file.
pub(super) fn prepare(round: &Round, folder: &Path) -> Result<(), CommandError> {
    if !round.setting.has_devices() {
        return Ok(());
    }
    let failed = |error: std::io::Error| CommandError::new(format_args!("{}: {error}", folder.display()));
    let file = folder.join("fabric.toml");
    match (round.fabric_text(), &round.setting.fabric) {
        (Some(text), _) => fs::write(&file, text).map_err(failed)?,
        (None, Some(FabricChoice::File { path, .. })) => {
            fs::copy(path, &file).map_err(failed)?;
        }
        (None, _) => {}
    }
    let tool = Tool::find()?;
    let nodes = tool.environments(&file, None, Some(&folder.join(FOLDER)), Inject::Preload)?;
    let library = tool.library()?.to_string_lossy().into_owned();
    for number in 0..round.processes() {
        let Some(node) = nodes.get(round.node_of(number) as usize) else {
            return Err(CommandError::new("the fabric has too few nodes"));
        };
        // The library is loaded by its path.
        let mut variables: Variables = node.clone();
        variables.remove("LD_PRELOAD");
        variables.insert("TBCCL_VERBS_LIB".to_owned(), library.clone());
        let text = serde_json::to_string(&variables).map_err(CommandError::new)?;
        fs::write(variables_file(folder, number), text).map_err(failed)?;
    }
    Ok(())
}

/// Injects a fault into the devices of a round, or undoes it.
pub(super) fn fault(folder: &Path, arguments: &[String]) -> Result<(), CommandError> {
    let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
    Tool::find()?.run("fault", &folder.join(FOLDER), &arguments)
}

/// Starts this program anew with the variables of its node, if it is a process of a fabric.
pub(in crate::commands::chaos) fn enter(folder: &Path, number: u32) -> Result<(), CommandError> {
    let Ok(text) = fs::read_to_string(variables_file(folder, number)) else { return Ok(()) };
    let variables: Variables = serde_json::from_str(&text).map_err(CommandError::new)?;
    if variables.iter().all(|(name, value)| std::env::var(name).is_ok_and(|known| known == *value)) {
        return Ok(());
    }
    let program = std::env::current_exe().map_err(CommandError::new)?;
    let error = Command::new(program).args(std::env::args_os().skip(1)).envs(variables).exec();
    Err(CommandError::new(format_args!("a process of a fabric can't be started: {error}")))
}
