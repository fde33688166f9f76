//! `softrdma env`: what to put into the environment of a program so that it finds itself on a node.

use super::{Failed, print, running::Running};
use softrdma::{default_folder, fabric::Fabric};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

const EXAMPLES: &str = "\
Examples:
  eval \"$(softrdma env --fabric pair.toml --node 0)\"   # and --node 1 in another terminal
  ibv_devices

Terminals that name equal files share a fabric. Its folder stays until it is removed by hand; `tbccl
fabric run` removes what it made.";

/// Print the variables with which a program finds itself on a node of a fabric
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The fabric file
    #[arg(long, value_name = "FILE")]
    fabric: PathBuf,

    /// The node: its name or number; all nodes when left out, with --json
    #[arg(long, value_name = "NODE", required_unless_present = "json")]
    node: Option<String>,

    /// The folder in which the processes of the fabric meet; one for equal fabric files when left out
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,

    /// libsoftrdma.so, when it isn't beside this program
    #[arg(long, value_name = "LIB", env = "SOFTRDMA_LIB")]
    lib: Option<PathBuf>,

    /// As JSON, for programs: a list with an object of variables for each node
    #[arg(long)]
    json: bool,
}

/// Carries out `softrdma env`.
pub(crate) fn run(args: &Args) -> Result<(), Failed> {
    let text = fs::read_to_string(&args.fabric)
        .map_err(|error| Failed::new(format_args!("{}: can't be read: {error}", args.fabric.display())))?;
    let fabric = Fabric::parse(&text, &args.fabric).map_err(Failed::new)?;
    let nodes = match &args.node {
        Some(node) => vec![fabric.node(node).map_err(Failed::new)?],
        None => (0..fabric.nodes.len()).collect(),
    };
    let library = library(args.lib.as_deref())?;
    let dir = args.dir.clone().unwrap_or_else(|| default_folder(fabric.digest));
    let dir = std::path::absolute(&dir).map_err(Failed::new)?;
    let file = Running::prepare(&dir, &text)?;
    let variables: Vec<Variables> =
        nodes.into_iter().map(|node| variables(&library, &dir, &file, node)).collect();
    if args.json {
        let text = serde_json::to_string_pretty(&variables).map_err(Failed::new)?;
        print(&(text + "\n"));
    } else {
        let exports = variables.into_iter().flatten();
        print(
            &exports.map(|(name, value)| format!("export {name}={}\n", quoted(&value))).collect::<String>(),
        );
    }
    Ok(())
}

/// Names and values.
type Variables = BTreeMap<&'static str, String>;

/// What a program on a node needs. Whatever else is preloaded stays so.
fn variables(library: &Path, dir: &Path, file: &Path, node: usize) -> Variables {
    let others = std::env::var("LD_PRELOAD").unwrap_or_default();
    let others = others.split([':', ' ']).filter(|other| !other.is_empty() && !other.contains("libsoftrdma"));
    let library = library.display().to_string();
    let preload: Vec<&str> = std::iter::once(library.as_str()).chain(others).collect();
    BTreeMap::from([
        ("SOFTRDMA_FABRIC", file.display().to_string()),
        ("SOFTRDMA_NODE", node.to_string()),
        ("SOFTRDMA_DIR", dir.display().to_string()),
        ("LD_PRELOAD", preload.join(":")),
    ])
}

/// The library: the one that was named, or the one beside this program.
fn library(named: Option<&Path>) -> Result<PathBuf, Failed> {
    let beside = || Some(std::env::current_exe().ok()?.with_file_name("libsoftrdma.so"));
    let path = named.map(Path::to_owned).or_else(beside).unwrap_or_default();
    path.canonicalize().map_err(|_| {
        Failed::new(format_args!(
            "no library at {}; build it with `cargo build -p softrdma`, or name it with --lib or SOFTRDMA_LIB",
            path.display()
        ))
    })
}

/// For a shell.
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
