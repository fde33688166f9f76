//! Where MLX's libraries are in a Python environment, and where tbccl's are.

use super::super::CommandError;
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Names of MLX's library, by system.
const MLX_NAMES: [&str; 2] = ["libmlx.dylib", "libmlx.so"];

/// Folders with tbccl's library, relative to this program: cargo's build folder, a wheel, and an
/// installation.
const OWN_FOLDERS: [&str; 3] = ["", "../lib", "../lib/tbccl"];

/// Folders with `libtbccl`, relative to tbccl's `libjaccl`, which needs it.
const CORE_FOLDERS: [&str; 2] = ["", ".."];

/// Python script that prints the folders of installed packages.
const PRINT_FOLDERS: &str =
    "import sysconfig\nfor name in ('platlib', 'purelib'): print(sysconfig.get_path(name))";

/// Libraries of an installed MLX.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MlxFolder {
    /// MLX's library.
    pub(super) mlx: PathBuf,
    /// JACCL's library beside it, which may be missing.
    pub(super) jaccl: PathBuf,
}

impl MlxFolder {
    /// Returns the libraries in a folder of packages, if MLX is there.
    fn in_packages(packages: &Path) -> Option<MlxFolder> {
        let folder = packages.join("mlx/lib");
        let mlx = MLX_NAMES.iter().map(|name| folder.join(name)).find(|path| path.is_file())?;
        let jaccl = mlx.with_file_name("libjaccl").with_extension(mlx.extension()?);
        Some(MlxFolder { mlx, jaccl })
    }

    /// Returns the file name of JACCL's library.
    pub(super) fn jaccl_name(&self) -> String {
        self.jaccl.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }
}

/// Returns the libraries of every MLX in an environment; without one, in the active environment or that of
/// python3.
pub(super) fn folders_of_mlx(venv: Option<&Path>) -> Result<Vec<MlxFolder>, CommandError> {
    let active = env::var_os("VIRTUAL_ENV").filter(|path| !path.is_empty()).map(PathBuf::from);
    let (packages, place) = match venv.map(Path::to_owned).or(active) {
        Some(venv) => (packages_of_venv(&venv), venv.display().to_string()),
        None => (packages_of_python()?, "the environment of python3".to_owned()),
    };
    let mut found: Vec<MlxFolder> =
        packages.iter().filter_map(|packages| MlxFolder::in_packages(packages)).collect();
    found.dedup();
    if found.is_empty() {
        return Err(CommandError::new(format_args!(
            "MLX is not in {place}: no mlx/lib/libmlx in {}; install it there, or name another \
             environment by --venv",
            if packages.is_empty() { "any lib/python*/site-packages".to_owned() } else { listed(&packages) }
        )));
    }
    Ok(found)
}

fn listed(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// Returns the folders of packages in a virtual environment.
fn packages_of_venv(venv: &Path) -> Vec<PathBuf> {
    let versions = fs::read_dir(venv.join("lib")).into_iter().flatten().filter_map(Result::ok);
    let is_python = |name: &str| name.starts_with("python") || name.starts_with("pypy");
    let pythons = versions.filter(|entry| is_python(&entry.file_name().to_string_lossy()));
    let mut packages: Vec<PathBuf> = pythons.map(|entry| entry.path().join("site-packages")).collect();
    packages.sort();
    packages
}

/// Returns the folders of packages of the first Python in PATH.
fn packages_of_python() -> Result<Vec<PathBuf>, CommandError> {
    for python in ["python3", "python"] {
        let Ok(output) = Command::new(python).args(["-c", PRINT_FOLDERS]).output() else { continue };
        if output.status.success() {
            let mut packages: Vec<PathBuf> =
                String::from_utf8_lossy(&output.stdout).lines().map(PathBuf::from).collect();
            packages.dedup();
            return Ok(packages);
        }
    }
    Err(CommandError::new(
        "no Python in PATH tells where its packages are: name the environment with MLX by --venv",
    ))
}

/// Returns tbccl's library of this name, installed with this program.
pub(super) fn own_library(name: &str) -> Option<PathBuf> {
    let program = env::current_exe().ok()?.canonicalize().ok()?;
    let folder = program.parent()?;
    let candidates = OWN_FOLDERS.iter().map(|relative| folder.join(relative).join(name));
    candidates.filter_map(|path| path.canonicalize().ok()).find(|path| path.is_file())
}

/// Returns the file name of `libtbccl` beside a library: in an installation, which the libraries for MLX look
/// for, and in cargo's folder.
fn core_names(library: &Path) -> [String; 2] {
    let major = env!("CARGO_PKG_VERSION_MAJOR");
    if library.extension().is_some_and(|extension| extension == "dylib") {
        [format!("libtbccl.{major}.dylib"), "libtbccl_c.dylib".into()]
    } else {
        [format!("libtbccl.so.{major}"), "libtbccl_c.so".into()]
    }
}

/// Returns the place of `libtbccl` beside an installed `libjaccl`.
pub(super) fn core_place(jaccl: &Path) -> PathBuf {
    let [name, _] = core_names(jaccl);
    jaccl.with_file_name(name)
}

/// Returns the `libtbccl` that a `libjaccl` of tbccl needs.
pub(super) fn core_of(library: &Path) -> Result<PathBuf, CommandError> {
    let [name, built] = core_names(library);
    let folder = library.parent().unwrap_or(Path::new("."));
    let candidates =
        CORE_FOLDERS.iter().flat_map(|above| [&name, &built].map(|name| folder.join(above).join(name)));
    let found = candidates.into_iter().find(|path| path.is_file());
    let missing = || {
        CommandError::new(format_args!(
            "{name} is not in {} nor in the folder above: {} needs it; install both from one package",
            folder.display(),
            library.display()
        ))
    };
    found.ok_or_else(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libtbccl_is_found_beside_libjaccl_and_in_the_folder_above() {
        let home = tempfile::tempdir().expect("a folder");
        let inner = home.path().join("tbccl");
        fs::create_dir(&inner).expect("our folder");
        let library = inner.join("libjaccl.dylib");
        let refused = format!("{:?}", core_of(&library).expect_err("nothing there"));
        assert!(refused.contains("libtbccl.0.dylib is not in"), "{refused}");
        for (place, expected) in [
            (home.path().join("libtbccl.0.dylib"), inner.join("../libtbccl.0.dylib")),
            (inner.join("libtbccl_c.dylib"), inner.join("libtbccl_c.dylib")),
        ] {
            fs::write(place, "").expect("our folder");
            assert_eq!(core_of(&library).expect("there"), expected);
        }
        assert_eq!(core_names(Path::new("libjaccl.so"))[0], "libtbccl.so.0");
    }

    #[test]
    fn mlx_is_found_in_each_python_of_an_environment() {
        let venv = tempfile::tempdir().expect("a folder");
        let place = |python: &str| venv.path().join("lib").join(python).join("site-packages/mlx/lib");
        let refused = format!("{:?}", folders_of_mlx(Some(venv.path())).expect_err("empty"));
        assert!(refused.contains("MLX is not in") && refused.contains("--venv"), "{refused}");
        for (python, name) in
            [("python3.11", "libmlx.so"), ("python3.12", "libmlx.dylib"), ("ruby", "libmlx.so")]
        {
            fs::create_dir_all(place(python)).expect("a folder");
            fs::write(place(python).join(name), "").expect("a file");
        }
        let found = folders_of_mlx(Some(venv.path())).expect("two of them");
        let names: Vec<String> = found.iter().map(MlxFolder::jaccl_name).collect();
        assert_eq!(names, ["libjaccl.so", "libjaccl.dylib"]);
        assert_eq!(found[1].mlx, place("python3.12").join("libmlx.dylib"));
    }
}
