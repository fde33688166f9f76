//! Compiles C programs against the library that cargo has built for the tests, and runs them.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io::{Read, Seek},
    os::unix::{fs::symlink, process::CommandExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
    thread,
    time::{Duration, Instant},
};

/// Time limit, longer than any program here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(280);

/// Returns the folder of this package.
pub(crate) fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the folder in which cargo puts libraries: beside this program.
fn built() -> PathBuf {
    let program = std::env::current_exe().expect("this program");
    program.parent().expect("a folder").to_owned()
}

/// Returns the shared library.
pub(crate) fn shared_library() -> PathBuf {
    built().join(if cfg!(target_os = "macos") { "libtbccl_c.dylib" } else { "libtbccl_c.so" })
}

/// Returns the folder of a build's programs: `tbccl` and the software device.
///
/// Cargo builds them only for their own packages, so they are built here, once. They are built with all
/// packages, so that the crates below have the same features as in a test of all, and are not built again.
pub(crate) fn programs() -> &'static Path {
    static PROGRAMS: OnceLock<PathBuf> = OnceLock::new();
    PROGRAMS.get_or_init(|| {
        let folder = built().parent().expect("a folder").to_owned();
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "-q", "--workspace", "--lib", "--bins", "--target-dir"]);
        cargo.arg(folder.parent().expect("a folder"));
        if !cfg!(target_os = "linux") {
            cargo.args(["--exclude", "tbccl-softrdma"]);
        }
        if folder.ends_with("release") {
            cargo.arg("--release");
        }
        assert!(cargo.status().expect("cargo").success(), "tbccl can't be built");
        folder
    })
}

/// Returns a command that runs `tbccl`.
pub(crate) fn tbccl() -> Command {
    Command::new(programs().join("tbccl"))
}

/// A folder for the programs of a test, with the library under the names that programs look for.
pub(crate) struct Workshop {
    folder: tempfile::TempDir,
}

impl Workshop {
    pub(crate) fn open() -> Workshop {
        // Built first: if cargo was asked for this package alone, it builds the libraries again, and they are
        // missing meanwhile.
        programs();
        let folder = tempfile::tempdir().expect("a temporary folder");
        let plain = if cfg!(target_os = "macos") {
            ["libtbccl.dylib", "libtbccl.0.dylib"]
        } else {
            ["libtbccl.so", "libtbccl.so.0"]
        };
        for name in plain {
            symlink(shared_library(), folder.path().join(name)).expect("our folder");
        }
        symlink(built().join("libtbccl_c.a"), folder.path().join("libtbccl.a")).expect("our folder");
        Workshop { folder }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Compiles a C source, of this folder or from elsewhere, and returns the program.
    pub(crate) fn program(&self, source: &str) -> PathBuf {
        self.compile(&here().join(source), &["cc", "-std=c11"], &["-L.", "-ltbccl", "-Wl,-rpath,."])
    }

    /// Compiles a source with all warnings as errors. In `link`, `.` stands for this folder.
    pub(crate) fn compile(&self, source: &Path, compiler: &[&str], link: &[&str]) -> PathBuf {
        let stem = source.file_stem().expect("a name").to_string_lossy();
        let program = self.path().join(format!("{stem}_{}", compiler.join("_").replace([' ', '+', '='], "")));
        let mut command = Command::new(compiler[0]);
        command.args(&compiler[1..]).args(["-Wall", "-Wextra", "-Werror", "-g", "-O1", "-pthread", "-I"]);
        command.arg(here()).arg("-I").arg(here().join("tests")).arg("-o").arg(&program).arg(source);
        let folder = self.path().display().to_string();
        for argument in link {
            command.arg(match *argument {
                "-L." => format!("-L{folder}"),
                "-Wl,-rpath,." => format!("-Wl,-rpath,{folder}"),
                other => other.to_owned(),
            });
        }
        run(&mut command);
        program
    }
}

/// Output of a command.
pub(crate) struct Said {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs a command, which must succeed within the time limit. Variables of tbccl that are set here are not
/// passed on.
pub(crate) fn run(command: &mut Command) -> Said {
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("TBCCL_")) {
        if !command.get_envs().any(|(given, _)| given == name) {
            command.env_remove(name);
        }
    }
    let (mut stdout, mut stderr) = (scratch(), scratch());
    command.stdin(Stdio::null()).process_group(0);
    command.stdout(stdout.try_clone().expect("a file")).stderr(stderr.try_clone().expect("a file"));
    let mut process = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let deadline = Instant::now() + PATIENCE;
    let status = loop {
        match process.try_wait().expect("our child") {
            Some(status) => break Some(status),
            None if Instant::now() > deadline => break None,
            None => thread::sleep(Duration::from_millis(20)),
        }
    };
    if status.is_none() {
        // Kills the whole group, whose leader is not reaped yet.
        let _ = Command::new("kill").args(["-9", "--", &format!("-{}", process.id())]).status();
        let _ = process.wait();
    }
    let said = Said { stdout: text(&mut stdout), stderr: text(&mut stderr) };
    assert!(
        status.is_some_and(|status| status.success()),
        "{command:?}: {status:?}\n{}\n{}",
        said.stdout,
        said.stderr
    );
    said
}

fn scratch() -> File {
    tempfile::tempfile().expect("a temporary file")
}

fn text(file: &mut File) -> String {
    let mut bytes = Vec::new();
    file.rewind().expect("a file");
    file.read_to_end(&mut bytes).expect("a file");
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns a command with arguments.
pub(crate) fn command<S: AsRef<OsStr>>(program: impl AsRef<OsStr>, arguments: &[S]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments);
    command
}

/// Translates a program for NCCL: other names, and NULL in the place of the stream.
pub(crate) fn ported(source: &Path, to: &Path) {
    let text = fs::read_to_string(source).expect("a source");
    let text = text.replace("nccl", "tbccl").replace("NCCL", "TBCCL").replace(", stream)", ", NULL)");
    fs::write(to, text).expect("our folder");
}
