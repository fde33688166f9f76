//! Open MPI's command line, translated to that of `tbccl run`, for the program installed as `mpirun` or
//! `mpiexec`.
//!
//! Options that `mlx.launch --backend mpi` passes and that scripts commonly pass are translated. Options
//! without effect here are ignored. Any other option is an error that names it, since a job other than the
//! requested one would be worse than none.

use super::{CommandError, run::mpi_library};
use std::{ffi::OsString, path::Path};

/// Program names that select Open MPI's command line.
const NAMES: [&str; 3] = ["mpirun", "mpiexec", "orterun"];

/// Names under which the program is installed.
pub(super) const INSTALLED: [&str; 2] = ["mpirun", "mpiexec"];

/// Translation of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Translation {
    /// An option of `tbccl run` that takes the same value.
    Value(&'static str),
    /// An option of `tbccl run` without a value.
    Flag(&'static str),
    /// Accepted and ignored, with this many values.
    Ignore(usize),
    /// `--output`, whose value has Open MPI's syntax.
    Output,
    /// `--map-by`, whose value has Open MPI's syntax.
    MapBy,
    /// `--bind-to`, whose value has Open MPI's syntax.
    BindTo,
    /// Help or version.
    Print(&'static str),
}

/// Translations by name, without dashes: Open MPI accepts one or two.
const OPTIONS: &[(&[&str], Translation)] = &[
    (&["n", "np", "c"], Translation::Value("-n")),
    (&["hostfile", "machinefile", "default-hostfile"], Translation::Value("--hostfile")),
    (&["host", "H"], Translation::Value("--hosts")),
    (&["x"], Translation::Value("-x")),
    (&["cwd", "wd", "wdir"], Translation::Value("--cwd")),
    (&["N", "npernode", "ppn"], Translation::Value("--per-host")),
    (&["timeout"], Translation::Value("--timeout")),
    (&["stdin"], Translation::Value("--stdin")),
    (&["output-filename", "output-directory"], Translation::Value("--output")),
    (&["tag-output"], Translation::Flag("--tag-output")),
    (&["timestamp-output"], Translation::Flag("--timestamp")),
    (&["oversubscribe"], Translation::Flag("--oversubscribe")),
    (&["bynode"], Translation::Flag("--map-by=node")),
    (&["byslot", "bycore"], Translation::Flag("--map-by=slot")),
    (&["bind-to-core"], Translation::Flag("--bind=core")),
    (&["bind-to-none"], Translation::Flag("--bind=none")),
    (&["output"], Translation::Output),
    (&["map-by"], Translation::MapBy),
    (&["bind-to"], Translation::BindTo),
    (&["mca", "gmca", "omca", "pmca", "prtemca", "gprtemca", "pmixmca"], Translation::Ignore(2)),
    (
        &[
            "rank-by",
            "ranking",
            "prefix",
            "report-child-jobs-separately",
            "display",
            "rtos",
            "runtime-options",
        ],
        Translation::Ignore(1),
    ),
    (
        &[
            "allow-run-as-root",
            "q",
            "quiet",
            "v",
            "verbose",
            "report-bindings",
            "display-map",
            "display-allocation",
            "use-hwthread-cpus",
            "nooversubscribe",
            "merge-stderr-to-stdout",
            "noprefix",
            "forward-signals",
        ],
        Translation::Ignore(0),
    ),
    (&["version", "V"], Translation::Print("--version")),
    (&["help", "h"], Translation::Print("--help")),
];

/// Whether this program was called as mpirun.
pub(super) fn is_mpirun_name(program: Option<&OsString>) -> bool {
    let name = program.and_then(|program| Path::new(program).file_name());
    name.is_some_and(|name| NAMES.iter().any(|known| name == *known))
}

/// Translates a command line of mpirun to one of `tbccl run`.
pub(super) fn translate(args: &[OsString]) -> Result<Vec<OsString>, CommandError> {
    let mut translated: Vec<OsString> = vec!["tbccl".into(), "run".into()];
    let mut rest = args.iter().skip(1);
    let mut names_ranks = false;
    while let Some(arg) = rest.clone().next() {
        let text = arg.to_str().unwrap_or_default();
        if text == "--" || !text.starts_with('-') || text == "-" {
            break;
        }
        rest.next();
        let (name, attached) = match text.trim_start_matches('-').split_once('=') {
            // `--np=4` contains its value; `-x K=V` is two arguments.
            Some((name, value)) => (name, Some(OsString::from(value))),
            None => (text.trim_start_matches('-'), None),
        };
        let translation =
            OPTIONS.iter().find(|(names, _)| names.contains(&name)).map(|(_, translation)| *translation);
        let translation = translation.ok_or_else(|| {
            let names = OPTIONS.iter().flat_map(|(names, _)| names.iter().copied());
            let unknown = collectives::UnknownName::new("option of mpirun", name, names);
            CommandError::new(format_args!("{unknown}; `tbccl run --help` lists all options"))
        })?;
        let mut value = || {
            attached
                .clone()
                .or_else(|| rest.next().cloned())
                .ok_or_else(|| CommandError::new(format_args!("{text} needs a value")))
        };
        names_ranks |= matches!(translation, Translation::Value("-n" | "--hostfile" | "--hosts"));
        match translation {
            Translation::Value("-x") => translated.extend(variable(value()?)),
            Translation::Value(name) => translated.extend([name.into(), value()?]),
            Translation::Flag(name) => translated.push(name.into()),
            Translation::Ignore(values) => {
                for _ in 0..values {
                    value()?;
                }
            }
            Translation::Output => translated.extend(output(&value()?)?),
            Translation::MapBy => translated.extend(map_by(&value()?)?),
            Translation::BindTo => translated.push(bind_to(&value()?)?),
            Translation::Print("--version") => return Ok(vec!["tbccl".into(), "--version".into()]),
            Translation::Print(option) => translated.push(option.into()),
        }
    }
    let mut program: Vec<OsString> = rest.cloned().collect();
    if program.iter().any(|arg| arg == ":") {
        return Err(CommandError::new(
            "several programs (`:`) in one job are not supported; start a script that tells them apart by \
            RANK",
        ));
    }
    if !names_ranks && !program.is_empty() {
        // Without hosts Open MPI starts one rank per core.
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        translated.extend(["-n".into(), cores.to_string().into()]);
    }
    if program.first().is_some_and(|first| first != "--") {
        translated.push("--".into());
    }
    translated.append(&mut program);
    Ok(translated)
}

/// Translates a variable for every rank. `mlx.launch` names the Open MPI library that it has found, which
/// does not work for ranks of tbccl.
fn variable(given: OsString) -> Vec<OsString> {
    let library =
        given.to_str().and_then(|text| text.split_once('=')).filter(|(key, _)| *key == mpi_library::VARIABLE);
    if library.is_some_and(|(_, library)| !mpi_library::is_ours(library.as_ref())) {
        return Vec::new();
    }
    vec!["-x".into(), given]
}

/// Translates `tag`, `timestamp` and `dir=D`. Qualifiers after a colon are ignored.
fn output(value: &OsString) -> Result<Vec<OsString>, CommandError> {
    let text = value.to_string_lossy();
    let directives = text.split(':').next().unwrap_or_default();
    let mut translated = Vec::new();
    for directive in directives.split(',').filter(|directive| !directive.is_empty()) {
        match directive.split_once('=') {
            None if ["tag", "tag-detailed", "tag-fullname", "rank"].contains(&directive) => {
                translated.push("--tag-output".into());
            }
            None if directive == "timestamp" => translated.push("--timestamp".into()),
            None if ["merge", "raw"].contains(&directive) => {}
            Some(("dir" | "directory" | "file" | "filename", path)) => {
                translated.extend(["--output".into(), path.into()]);
            }
            _ => {
                return Err(CommandError::new(format_args!(
                    "--output {text}: `{directive}` is not supported; use tag, timestamp, dir=DIR or \
                    :raw"
                )));
            }
        }
    }
    Ok(translated)
}

/// Translates `slot`, `node` and `ppr:N:node`, each with qualifiers.
fn map_by(value: &OsString) -> Result<Vec<OsString>, CommandError> {
    let text = value.to_string_lossy();
    let parts: Vec<&str> = text.split(':').collect();
    let mut translated: Vec<OsString> = match parts.as_slice() {
        ["ppr", number, "node", ..] => vec!["--per-host".into(), (*number).into()],
        ["node", ..] => vec!["--map-by=node".into()],
        ["slot" | "core" | "hwthread" | "", ..] => vec!["--map-by=slot".into()],
        ["numa" | "package" | "socket" | "l3cache", ..] => vec!["--map-by=slot".into(), "--bind=numa".into()],
        _ => {
            return Err(CommandError::new(format_args!(
                "--map-by {text}: not supported; use slot, node, ppr:N:node, core or numa"
            )));
        }
    };
    if parts.iter().any(|part| part.eq_ignore_ascii_case("oversubscribe")) {
        translated.push("--oversubscribe".into());
    }
    Ok(translated)
}

fn bind_to(value: &OsString) -> Result<OsString, CommandError> {
    let text = value.to_string_lossy();
    match text.split(':').next().unwrap_or_default() {
        "none" => Ok("--bind=none".into()),
        "core" | "hwthread" => Ok("--bind=core".into()),
        "numa" | "package" | "socket" | "l3cache" => Ok("--bind=numa".into()),
        _ => Err(CommandError::new(format_args!("--bind-to {text}: not supported; use core, numa or none"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(line: &str) -> String {
        let args: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        translate(&args).expect(line).join(" ".as_ref()).into_string().expect("text")
    }

    fn refused(line: &str) -> String {
        let args: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        format!("{:?}", translate(&args).expect_err(line))
    }

    #[test]
    fn what_mlx_launch_passes_is_understood() {
        assert_eq!(
            translated("mpirun --output :raw --hostfile /f -cwd /d -x A=1 -x B=2 -- python -x p.py"),
            "tbccl run --hostfile /f --cwd /d -x A=1 -x B=2 -- python -x p.py"
        );
    }

    #[test]
    fn the_library_of_another_mpi_is_none_for_our_ranks() {
        assert_eq!(
            translated(
                "mpirun -np 2 -x MLX_MPI_LIBNAME=libmpi.so.40 -x A=1 -x MLX_MPI_LIBNAME=/l/libtbccl_mpi.so \
                -- p"
            ),
            "tbccl run -n 2 -x A=1 -x MLX_MPI_LIBNAME=/l/libtbccl_mpi.so -- p"
        );
    }

    #[test]
    fn what_scripts_pass_is_understood() {
        assert_eq!(
            translated(
                "mpirun --allow-run-as-root --bind-to none --mca btl ^openib -np 4 --host a:2,b ./p -np 9"
            ),
            "tbccl run --bind=none -n 4 --hosts a:2,b -- ./p -np 9"
        );
        assert_eq!(
            translated("mpiexec --np=2 --map-by ppr:1:node:oversubscribe p"),
            "tbccl run -n 2 --per-host 1 --oversubscribe -- p"
        );
        assert_eq!(
            translated("mpirun -n 2 --output tag,timestamp p"),
            "tbccl run -n 2 --tag-output --timestamp -- p"
        );
        assert_eq!(translated("mpirun -n 2 --output dir=o p"), "tbccl run -n 2 --output o -- p");
        assert_eq!(translated("mpirun --version"), "tbccl --version");
    }

    #[test]
    fn without_hosts_there_is_a_rank_for_every_core() {
        let cores = std::thread::available_parallelism().expect("known");
        assert_eq!(translated("mpirun p"), format!("tbccl run -n {cores} -- p"));
    }

    #[test]
    fn what_is_not_understood_is_refused_by_name() {
        assert!(refused("mpirun --hostfiles f p").contains("did you mean `hostfile`?"));
        assert!(refused("mpirun -np").contains("-np needs a value"));
        assert!(refused("mpirun -np 1 a : -np 1 b").contains("several programs"));
        assert!(refused("mpirun --map-by dist p").contains("--map-by dist"));
        assert!(refused("mpirun --output xml p").contains("`xml` is not supported"));
    }

    #[test]
    fn the_name_of_the_program_decides() {
        assert!(is_mpirun_name(Some(&"/opt/bin/mpirun".into())) && is_mpirun_name(Some(&"mpiexec".into())));
        assert!(!is_mpirun_name(Some(&"tbccl".into())) && !is_mpirun_name(None));
    }
}
