//! `softrdma env`: prints the environment variables that place a program on a node.

use super::{
    CliError,
    library::{self, LibraryArg, Placement},
    print,
    running_fabric::RunningFabric,
};
use clap::ValueEnum;
use softrdma::{default_folder, fabric::Fabric};
use std::{
    collections::BTreeMap,
    fs, iter,
    path::{Path, PathBuf},
};

const EXAMPLES: &str = "\
Examples:
  eval \"$(softrdma env --fabric pair.toml --node 0)\"   # and --node 1 in another terminal
  ibv_devices

Terminals that name equal files share a fabric. Its folder stays until you remove it; `tbccl fabric
run` removes the folder that it created.";

/// Print the variables that place a program on a node of a fabric
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The fabric file
    #[arg(long, value_name = "FILE")]
    fabric: PathBuf,

    /// Name or number of the node; with --json all nodes when left out
    #[arg(long, value_name = "NODE", required_unless_present = "json")]
    node: Option<String>,

    /// The folder that the fabric's processes share; by default one folder for equal fabric files
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,

    /// How a program finds the device instead of libibverbs
    #[arg(long, value_name = "HOW", default_value = "preload")]
    inject: Inject,

    #[command(flatten)]
    library: LibraryArg,

    /// Print JSON: a list with an object of variables for each node
    #[arg(long)]
    json: bool,
}

/// Ways to replace libibverbs in a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Inject {
    /// LD_PRELOAD: for any program and any installed version of libibverbs
    Preload,
    /// LD_LIBRARY_PATH: also for programs that open a library by name; libibverbs need not be installed
    LibraryPath,
}

/// Runs `softrdma env`.
pub(crate) fn run(args: &Args) -> Result<(), CliError> {
    let text = fs::read_to_string(&args.fabric)
        .map_err(|error| CliError::new(format_args!("{}: can't be read: {error}", args.fabric.display())))?;
    let fabric = Fabric::parse(&text, &args.fabric).map_err(CliError::new)?;
    let nodes = match &args.node {
        Some(node) => vec![fabric.find_node(node).map_err(CliError::new)?],
        None => (0..fabric.nodes.len()).collect(),
    };
    let library = args.library.find()?;
    let dir = args.dir.clone().unwrap_or_else(|| default_folder(fabric.digest));
    let dir = std::path::absolute(&dir).map_err(CliError::new)?;
    let file = RunningFabric::prepare(&dir, &text)?;
    let injection = injection(args.inject, &library, &dir)?;
    let variables = nodes.into_iter().map(|node| variables(&injection, &dir, &file, node));
    let variables: Vec<Variables> = variables.collect();
    if args.json {
        let text = serde_json::to_string_pretty(&variables).map_err(CliError::new)?;
        print(&(text + "\n"));
    } else {
        let exports = variables.into_iter().flatten();
        print(
            &exports.map(|(name, value)| format!("export {name}={}\n", quoted(&value))).collect::<String>(),
        );
    }
    Ok(())
}

/// Environment variables and their values.
type Variables = BTreeMap<&'static str, String>;

/// Returns the variables of a program on a node.
fn variables(injection: &Variables, dir: &Path, file: &Path, node: usize) -> Variables {
    let mut all = injection.clone();
    all.insert("SOFTRDMA_FABRIC", file.display().to_string());
    all.insert("SOFTRDMA_NODE", node.to_string());
    all.insert("SOFTRDMA_DIR", dir.display().to_string());
    all
}

/// Returns the variables through which a program finds the device. Other preloaded libraries and library
/// folders are kept.
fn injection(inject: Inject, library: &Path, dir: &Path) -> Result<Variables, CliError> {
    let preloaded = std::env::var("LD_PRELOAD").unwrap_or_default();
    let is_ours = |path: &&str| path.ends_with("libsoftrdma.so");
    let words = || preloaded.split([':', ' ']).filter(|path| !path.is_empty());
    let others = words().filter(|path| !is_ours(path)).map(str::to_owned);
    if inject == Inject::Preload {
        let all: Vec<String> = iter::once(library.display().to_string()).chain(others).collect();
        return Ok(BTreeMap::from([("LD_PRELOAD", all.join(":"))]));
    }
    let folder = dir.join("lib");
    library::write_folder(&folder, library, Placement::Symlink)?;
    let folder = folder.display().to_string();
    let searched = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
    let elsewhere = searched.split(':').filter(|path| !path.is_empty() && *path != folder);
    let all: Vec<&str> = iter::once(folder.as_str()).chain(elsewhere).collect();
    let mut variables = BTreeMap::from([("LD_LIBRARY_PATH", all.join(":"))]);
    if words().any(|path| is_ours(&path)) {
        variables.insert("LD_PRELOAD", others.collect::<Vec<_>>().join(":"));
    }
    Ok(variables)
}

/// Quotes a value for a POSIX shell.
fn quoted(value: &str) -> String {
    format!("'{}'", value.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_survive_the_shell() {
        assert_eq!(quoted("/a b/it's"), "'/a b/it'\\''s'");
    }
}
