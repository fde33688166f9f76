//! Test harness that compiles C programs against the library that cargo has built for the tests, and runs
//! them.

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

/// Timeout of a program, longer than any takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(280);

/// Returns the folder of the package under test.
pub(crate) fn package_dir() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the folder in which cargo puts libraries, which is that of this test program.
fn library_dir() -> PathBuf {
    let program = std::env::current_exe().expect("this program");
    program.parent().expect("a folder").to_owned()
}

/// Returns the path of the shared library.
pub(crate) fn shared_library() -> PathBuf {
    library_dir().join(if cfg!(target_os = "macos") { "libtbccl_c.dylib" } else { "libtbccl_c.so" })
}

/// Returns the folder of the built programs: `tbccl` and the software device.
///
/// Cargo builds programs only for tests of their own packages, so the first call builds them. It builds all
/// packages, which gives the shared crates the same features as a test of the whole workspace, so that cargo
/// does not build them twice.
pub(crate) fn binary_dir() -> &'static Path {
    static PROGRAMS: OnceLock<PathBuf> = OnceLock::new();
    PROGRAMS.get_or_init(|| {
        let folder = library_dir().parent().expect("a folder").to_owned();
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "-q", "--workspace", "--lib", "--bins", "--features=tbccl/test-driver"]);
        cargo.arg("--target-dir");
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
    Command::new(binary_dir().join("tbccl"))
}

/// Temporary folder for compiled programs, with the library under the names that they link with.
pub(crate) struct BuildDir {
    folder: tempfile::TempDir,
}

impl BuildDir {
    pub(crate) fn new() -> BuildDir {
        // Builds the programs first. If cargo tests only this package, that build replaces the libraries,
        // which are missing meanwhile.
        binary_dir();
        let folder = tempfile::tempdir().expect("a temporary folder");
        let names = if cfg!(target_os = "macos") {
            ["libtbccl.dylib", "libtbccl.0.dylib"]
        } else {
            ["libtbccl.so", "libtbccl.so.0"]
        };
        for name in names {
            symlink(shared_library(), folder.path().join(name)).expect("our folder");
        }
        symlink(library_dir().join("libtbccl_c.a"), folder.path().join("libtbccl.a")).expect("our folder");
        BuildDir { folder }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Compiles a C source and returns the program. `source` is relative to the package, or absolute.
    pub(crate) fn program(&self, source: &str) -> PathBuf {
        self.compile(&package_dir().join(source), &["cc", "-std=c11"], &["-L.", "-ltbccl", "-Wl,-rpath,."])
    }

    /// Compiles a source with all warnings as errors. `.` in `link` stands for this folder.
    pub(crate) fn compile(&self, source: &Path, compiler: &[&str], link: &[&str]) -> PathBuf {
        let stem = source.file_stem().expect("a name").to_string_lossy();
        let program = self.path().join(format!("{stem}_{}", compiler.join("_").replace([' ', '+', '='], "")));
        let mut command = Command::new(compiler[0]);
        command.args(&compiler[1..]).args(["-Wall", "-Wextra", "-Werror", "-g", "-O1", "-pthread", "-I"]);
        command
            .arg(package_dir())
            .arg("-I")
            .arg(package_dir().join("tests"))
            .arg("-o")
            .arg(&program)
            .arg(source);
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
pub(crate) struct CommandOutput {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs a command and returns its output. Removes variables of tbccl that the command does not set itself.
///
/// # Panics
/// If the command fails or exceeds the timeout.
pub(crate) fn run(command: &mut Command) -> CommandOutput {
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("TBCCL_")) {
        if !command.get_envs().any(|(given, _)| given == name) {
            command.env_remove(name);
        }
    }
    // Tests leave nothing in the user's cache folder, and don't depend on the machine's calibration.
    command.env("TBCCL_CALIBRATE", "0");
    let (mut stdout, mut stderr) = (output_file(), output_file());
    command.stdin(Stdio::null()).process_group(0);
    command.stdout(stdout.try_clone().expect("a file")).stderr(stderr.try_clone().expect("a file"));
    let mut process = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let deadline = Instant::now() + TIMEOUT;
    let status = loop {
        match process.try_wait().expect("our child") {
            Some(status) => break Some(status),
            None if Instant::now() > deadline => break None,
            None => thread::sleep(Duration::from_millis(20)),
        }
    };
    if status.is_none() {
        // Kills the whole process group, whose leader has not been reaped yet.
        let _ = Command::new("kill").args(["-9", "--", &format!("-{}", process.id())]).status();
        let _ = process.wait();
    }
    let output = CommandOutput { stdout: read_text(&mut stdout), stderr: read_text(&mut stderr) };
    assert!(
        status.is_some_and(|status| status.success()),
        "{command:?}: {status:?}\n{}\n{}",
        output.stdout,
        output.stderr
    );
    output
}

fn output_file() -> File {
    tempfile::tempfile().expect("a temporary file")
}

fn read_text(file: &mut File) -> String {
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

/// Translates a program for NCCL: renames the functions, and passes NULL in the place of the stream.
pub(crate) fn port_from_nccl(source: &Path, to: &Path) {
    let text = fs::read_to_string(source).expect("a source");
    let text = text.replace("nccl", "tbccl").replace("NCCL", "TBCCL").replace(", stream)", ", NULL)");
    fs::write(to, text).expect("our folder");
}
