//! The program installed as `mpirun` or `mpiexec`: Open MPI's options, translated to those of `tbccl run`.
//!
//! Options that `mlx.launch --backend mpi` passes and that scripts commonly pass are translated; options that
//! change nothing here are ignored. Any other option is an error that names it: running something else than
//! requested would be worse than not running.

use super::{Failed, run::mpi_library};
use std::{ffi::OsString, path::Path};

/// The names under which this is what is meant.
const NAMES: [&str; 3] = ["mpirun", "mpiexec", "orterun"];

/// The names under which the program is installed.
pub(super) const INSTALLED: [&str; 2] = ["mpirun", "mpiexec"];

/// The translation of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Becomes {
    /// This, with its value.
    Value(&'static str),
    /// This.
    Flag(&'static str),
    /// Accepted and ignored, with this many values.
    Nothing(usize),
    /// `--output`, whose value has Open MPI's own syntax.
    Output,
    /// `--map-by`, likewise.
    MapBy,
    /// `--bind-to`.
    BindTo,
    /// Help, or the version.
    Ask(&'static str),
}

/// Options without their dashes: Open MPI takes one or two.
const OPTIONS: &[(&[&str], Becomes)] = &[
    (&["n", "np", "c"], Becomes::Value("-n")),
    (&["hostfile", "machinefile", "default-hostfile"], Becomes::Value("--hostfile")),
    (&["host", "H"], Becomes::Value("--hosts")),
    (&["x"], Becomes::Value("-x")),
    (&["cwd", "wd", "wdir"], Becomes::Value("--cwd")),
    (&["N", "npernode", "ppn"], Becomes::Value("--per-host")),
    (&["timeout"], Becomes::Value("--timeout")),
    (&["stdin"], Becomes::Value("--stdin")),
    (&["output-filename", "output-directory"], Becomes::Value("--output")),
    (&["tag-output"], Becomes::Flag("--tag-output")),
    (&["timestamp-output"], Becomes::Flag("--timestamp")),
    (&["oversubscribe"], Becomes::Flag("--oversubscribe")),
    (&["bynode"], Becomes::Flag("--map-by=node")),
    (&["byslot", "bycore"], Becomes::Flag("--map-by=slot")),
    (&["bind-to-core"], Becomes::Flag("--bind=core")),
    (&["bind-to-none"], Becomes::Flag("--bind=none")),
    (&["output"], Becomes::Output),
    (&["map-by"], Becomes::MapBy),
    (&["bind-to"], Becomes::BindTo),
    (&["mca", "gmca", "omca", "pmca", "prtemca", "gprtemca", "pmixmca"], Becomes::Nothing(2)),
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
        Becomes::Nothing(1),
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
        Becomes::Nothing(0),
    ),
    (&["version", "V"], Becomes::Ask("--version")),
    (&["help", "h"], Becomes::Ask("--help")),
];

/// Whether this program was called under one of these names.
pub(super) fn is_meant(program: Option<&OsString>) -> bool {
    let name = program.and_then(|program| Path::new(program).file_name());
    name.is_some_and(|name| NAMES.iter().any(|known| name == *known))
}

/// The same command line as ours.
pub(super) fn translate(args: &[OsString]) -> Result<Vec<OsString>, Failed> {
    let mut ours: Vec<OsString> = vec!["tbccl".into(), "run".into()];
    let mut rest = args.iter().skip(1);
    let mut says_where = false;
    while let Some(arg) = rest.clone().next() {
        let text = arg.to_str().unwrap_or_default();
        if text == "--" || !text.starts_with('-') || text == "-" {
            break;
        }
        rest.next();
        let (name, attached) = match text.trim_start_matches('-').split_once('=') {
            // `-x K=V` has no value of its own; `--np=4` has.
            Some((name, value)) => (name, Some(OsString::from(value))),
            None => (text.trim_start_matches('-'), None),
        };
        let becomes = OPTIONS.iter().find(|(names, _)| names.contains(&name)).map(|(_, becomes)| *becomes);
        let becomes = becomes.ok_or_else(|| {
            let names = OPTIONS.iter().flat_map(|(names, _)| names.iter().copied());
            let unknown = collectives::UnknownName::new("option of mpirun", name, names);
            Failed::new(format_args!("{unknown}; `tbccl run --help` has all that tbccl can do"))
        })?;
        let mut value = || {
            attached
                .clone()
                .or_else(|| rest.next().cloned())
                .ok_or_else(|| Failed::new(format_args!("{text} needs a value")))
        };
        says_where |= matches!(becomes, Becomes::Value("-n" | "--hostfile" | "--hosts"));
        match becomes {
            Becomes::Value("-x") => ours.extend(variable(value()?)),
            Becomes::Value(name) => ours.extend([name.into(), value()?]),
            Becomes::Flag(name) => ours.push(name.into()),
            Becomes::Nothing(values) => {
                for _ in 0..values {
                    value()?;
                }
            }
            Becomes::Output => ours.extend(output(&value()?)?),
            Becomes::MapBy => ours.extend(map_by(&value()?)?),
            Becomes::BindTo => ours.push(bind_to(&value()?)?),
            Becomes::Ask("--version") => return Ok(vec!["tbccl".into(), "--version".into()]),
            Becomes::Ask(question) => ours.push(question.into()),
        }
    }
    let mut program: Vec<OsString> = rest.cloned().collect();
    if program.iter().any(|arg| arg == ":") {
        return Err(Failed::new(
            "several programs (`:`) in one job are not supported; start a script that tells them apart by RANK",
        ));
    }
    if !says_where && !program.is_empty() {
        // As Open MPI does without any hosts: a rank for every core.
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        ours.extend(["-n".into(), cores.to_string().into()]);
    }
    if program.first().is_some_and(|first| first != "--") {
        ours.push("--".into());
    }
    ours.append(&mut program);
    Ok(ours)
}

/// Translates a variable for every rank. `mlx.launch` names the library of the Open MPI that it has found,
/// which is wrong for ranks of tbccl.
fn variable(given: OsString) -> Vec<OsString> {
    let library =
        given.to_str().and_then(|text| text.split_once('=')).filter(|(key, _)| *key == mpi_library::VARIABLE);
    if library.is_some_and(|(_, library)| !mpi_library::is_ours(library.as_ref())) {
        return Vec::new();
    }
    vec!["-x".into(), given]
}

/// `tag`, `timestamp`, `dir=D`, and qualifiers after a colon, of which `raw` means as it comes.
fn output(value: &OsString) -> Result<Vec<OsString>, Failed> {
    let text = value.to_string_lossy();
    let directives = text.split(':').next().unwrap_or_default();
    let mut ours = Vec::new();
    for directive in directives.split(',').filter(|directive| !directive.is_empty()) {
        match directive.split_once('=') {
            None if ["tag", "tag-detailed", "tag-fullname", "rank"].contains(&directive) => {
                ours.push("--tag-output".into());
            }
            None if directive == "timestamp" => ours.push("--timestamp".into()),
            None if ["merge", "raw"].contains(&directive) => {}
            Some(("dir" | "directory" | "file" | "filename", path)) => {
                ours.extend(["--output".into(), path.into()]);
            }
            _ => {
                return Err(Failed::new(format_args!(
                    "--output {text}: `{directive}` is not supported; there is tag, timestamp, dir=DIR and :raw"
                )));
            }
        }
    }
    Ok(ours)
}

/// `slot`, `node`, `ppr:N:node`, each with qualifiers.
fn map_by(value: &OsString) -> Result<Vec<OsString>, Failed> {
    let text = value.to_string_lossy();
    let parts: Vec<&str> = text.split(':').collect();
    let mut ours: Vec<OsString> = match parts.as_slice() {
        ["ppr", number, "node", ..] => vec!["--per-host".into(), (*number).into()],
        ["node", ..] => vec!["--map-by=node".into()],
        ["slot" | "core" | "hwthread" | "", ..] => vec!["--map-by=slot".into()],
        ["numa" | "package" | "socket" | "l3cache", ..] => vec!["--map-by=slot".into(), "--bind=numa".into()],
        _ => {
            return Err(Failed::new(format_args!(
                "--map-by {text}: not supported; there is slot, node, ppr:N:node, core and numa"
            )));
        }
    };
    if parts.iter().any(|part| part.eq_ignore_ascii_case("oversubscribe")) {
        ours.push("--oversubscribe".into());
    }
    Ok(ours)
}

fn bind_to(value: &OsString) -> Result<OsString, Failed> {
    let text = value.to_string_lossy();
    match text.split(':').next().unwrap_or_default() {
        "none" => Ok("--bind=none".into()),
        "core" | "hwthread" => Ok("--bind=core".into()),
        "numa" | "package" | "socket" | "l3cache" => Ok("--bind=numa".into()),
        _ => Err(Failed::new(format_args!("--bind-to {text}: not supported; there is core, numa and none"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ours(line: &str) -> String {
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
            ours("mpirun --output :raw --hostfile /f -cwd /d -x A=1 -x B=2 -- python -x p.py"),
            "tbccl run --hostfile /f --cwd /d -x A=1 -x B=2 -- python -x p.py"
        );
    }

    #[test]
    fn the_library_of_another_mpi_is_none_for_our_ranks() {
        assert_eq!(
            ours(
                "mpirun -np 2 -x MLX_MPI_LIBNAME=libmpi.so.40 -x A=1 -x MLX_MPI_LIBNAME=/l/libtbccl_mpi.so -- p"
            ),
            "tbccl run -n 2 -x A=1 -x MLX_MPI_LIBNAME=/l/libtbccl_mpi.so -- p"
        );
    }

    #[test]
    fn what_scripts_pass_is_understood() {
        assert_eq!(
            ours("mpirun --allow-run-as-root --bind-to none --mca btl ^openib -np 4 --host a:2,b ./p -np 9"),
            "tbccl run --bind=none -n 4 --hosts a:2,b -- ./p -np 9"
        );
        assert_eq!(
            ours("mpiexec --np=2 --map-by ppr:1:node:oversubscribe p"),
            "tbccl run -n 2 --per-host 1 --oversubscribe -- p"
        );
        assert_eq!(
            ours("mpirun -n 2 --output tag,timestamp p"),
            "tbccl run -n 2 --tag-output --timestamp -- p"
        );
        assert_eq!(ours("mpirun -n 2 --output dir=o p"), "tbccl run -n 2 --output o -- p");
        assert_eq!(ours("mpirun --version"), "tbccl --version");
    }

    #[test]
    fn without_hosts_there_is_a_rank_for_every_core() {
        let cores = std::thread::available_parallelism().expect("known");
        assert_eq!(ours("mpirun p"), format!("tbccl run -n {cores} -- p"));
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
        assert!(is_meant(Some(&"/opt/bin/mpirun".into())) && is_meant(Some(&"mpiexec".into())));
        assert!(!is_meant(Some(&"tbccl".into())) && !is_meant(None));
    }
}
