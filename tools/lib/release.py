"""Builds for other machines, all on Linux: `wheels` and `archive` package what this module links, and `macos`
checks it.

The Python package ziglang brings a linker, a compiler for C++, and the system stubs of macOS and of each
glibc; cargo-zigbuild passes them to cargo; `tools/python-env release` installs both. The linker of Rust's
toolchain links files for macOS (`link-macos`). Rust's standard library for a target comes by rustup.
Frameworks of macOS are not linked: code that needs one opens it at run time.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from checks import Checks
from macho import MachO

ROOT = Path(__file__).resolve().parents[2]
#: The program that strips files of all targets.
OBJCOPY = ROOT / "tools" / "lib" / "objcopy"
#: The program that links for macOS, and the folder of its stubs.
LINK_MACOS = ROOT / "tools" / "lib" / "link-macos"
MACOS_STUBS = ROOT / "target" / "macos-stubs"
#: Seconds without a line of output while a command runs.
SILENCE = 30
#: The library that all files for macOS need.
SYSTEM_LIBRARY = "/usr/lib/libSystem.B.dylib"
#: The least macOS on which a linked file runs.
LEAST_MACOS = (14, 0)
#: The most bytes of a stripped library, and of a file with the program in it.
MOST_LIBRARY_BYTES = 10_000_000
MOST_PROGRAM_BYTES = 18_000_000
#: Levels of optimization in cargo's profile `dev` for files that are linked and checked, and never run. C++
#: code that is not optimized takes more names from the system's library than the code that users get.
LEVELS = {"": 0, "package.tbccl-collectives.": 0, "package.tbccl-kernels.": 0, "package.tbccl-jaccl.": 3}
UNOPTIMIZED = [f"--config=profile.dev.{whose}opt-level={level}" for whose, level in LEVELS.items()]
UNOPTIMIZED += ["--config=profile.dev.debug=false"]


@dataclass(frozen=True)
class Target:
    """A system and processor to build for."""

    name: str
    #: The name that rustc uses.
    rust: str
    #: The oldest glibc on which a linked file runs; empty on macOS.
    glibc: str
    #: The platform tag of wheels.
    wheel_tag: str

    @property
    def is_mac(self) -> bool:
        return not self.glibc

    @property
    def strip(self) -> list[str]:
        """Options of OBJCOPY for programs and shared libraries."""
        return ["--strip-debug", "--discard-all"] if self.is_mac else ["--strip-unneeded"]

    @property
    def for_mlx(self) -> list[str]:
        """Packages of the libraries for MLX."""
        # MLX for Linux has no JACCL, and zig no C++ library with the names of GCC's.
        return ["tbccl-mpi-shim", "tbccl-jaccl"] if self.is_mac else ["tbccl-mpi-shim"]


TARGETS = {
    target.name: target
    for target in (
        Target("linux-x86_64", "x86_64-unknown-linux-gnu", "2.28", "manylinux_2_28_x86_64"),
        Target("linux-aarch64", "aarch64-unknown-linux-gnu", "2.28", "manylinux_2_28_aarch64"),
        Target("macos-arm64", "aarch64-apple-darwin", "", "macosx_14_0_arm64"),
    )
}


def fail(why: object) -> None:
    """Ends the program for want of a prerequisite."""
    print(f"{Path(sys.argv[0]).name}: {why}", file=sys.stderr)
    sys.exit(2)


def version() -> str:
    """Returns the version of the workspace."""
    found = re.search(r'^version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)
    assert found, "Cargo.toml has a version"
    return found[1]


def environment() -> Path:
    """Returns the virtual environment with the tools, which is created if it does not exist."""
    done = subprocess.run([ROOT / "tools" / "python-env", "release"], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        fail("no environment with ziglang and cargo-zigbuild; see the messages above")
    return Path(done.stdout.strip())


def standard_library(target: Target) -> None:
    """Installs Rust's standard library for a target, if it is missing."""
    command = ["rustc", "--print", "target-libdir", "--target", target.rust]
    folder = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT).stdout.strip()
    if list(Path(folder).glob("libstd-*.rlib")):
        return
    if subprocess.run(["rustup", "target", "add", target.rust], cwd=ROOT).returncode:
        fail(f"no standard library of Rust for {target.rust}, and rustup can't bring it")


def say(text: str) -> None:
    """Prints the state of the work, after this program's name."""
    print(f"{Path(sys.argv[0]).name}: {text}", file=sys.stderr, flush=True)


def run(command: list, work: str, **options) -> int:
    """Runs a command in the folder of the repository, and returns its exit status.

    Cargo names a package when its compilation begins, and then may be silent for minutes. On a terminal it
    shows its progress; elsewhere this function prints every 30 seconds what goes on. A command does not
    outlive this program.
    """
    begin = time.monotonic()
    with subprocess.Popen(command, cwd=ROOT, **options) as process:
        try:
            while True:
                try:
                    return process.wait(SILENCE)
                except subprocess.TimeoutExpired:
                    minutes, seconds = divmod(round(time.monotonic() - begin), 60)
                    if not sys.stderr.isatty():
                        say(f"{work}, for {minutes} min {seconds} s")
        except BaseException:
            process.terminate()
            raise


def build(target: Target, tools: Path, packages: list[str], profile: str = "dist") -> Path:
    """Builds packages, in the profile `dev` without optimization, and returns the folder of the results.

    Other words of cargo than names of packages are possible, such as `--workspace`.
    """
    standard_library(target)
    suffix = f".{target.glibc}" if target.glibc else ""
    command = ["cargo", "zigbuild", "--profile", profile, "--locked", "--target", target.rust + suffix]
    command += UNOPTIMIZED if profile == "dev" else []
    for package in packages:
        command += [package] if package.startswith("-") else ["-p", package]
    path = f"{tools / 'bin'}:{os.environ['PATH']}"
    least = ".".join(map(str, LEAST_MACOS))
    variables = {**os.environ, "PATH": path, "MACOSX_DEPLOYMENT_TARGET": least}
    if target.is_mac:
        _write_stubs()
        variables |= {"MACOS_STUBS": str(MACOS_STUBS)}
        variables |= {"CARGO_TARGET_AARCH64_APPLE_DARWIN_LINKER": str(LINK_MACOS)}
    if run(command, f"compiling and linking for {target.name}", env=variables):
        print(f"{Path(sys.argv[0]).name}: no build for {target.name}", file=sys.stderr)
        sys.exit(1)
    folder = "debug" if profile == "dev" else profile
    return ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / target.rust / folder


def build_for_checks(packages: list[str]) -> Path:
    """Builds packages for macOS that are checked and never run, and returns the folder of the results.

    Ends the program with status 75 if that can't be tried on this machine.
    """
    target = TARGETS["macos-arm64"]
    try:
        tools = environment()
        standard_library(target)
    except SystemExit:
        # The reason has been printed.
        sys.exit(75)
    return build(target, tools, packages, "dev")


@cache
def system_names() -> frozenset[str]:
    """Returns the names that macOS has for Apple silicon, from the stubs that zig links with."""
    pattern = "lib/python*/site-packages/ziglang/lib/libc/darwin/libSystem.tbd"
    text = next(environment().glob(pattern)).read_text()
    names: set[str] = set()
    for block in re.split(r"(?m)^  - targets:|^---", text):
        targets, _, lists = block.partition("]")
        if "arm64" in targets:
            for symbols in re.findall(r"symbols:\s*\[([^\]]*)\]", lists):
                names.update(name.strip(" '\n") for name in symbols.split(","))
    return frozenset(names)


def _write_stubs() -> None:
    """Describes the system's library for the linker, which does not know all processors in zig's stubs."""
    targets = "[ arm64-macos ]"
    head = f"--- !tapi-tbd\ntbd-version: 4\ntargets: {targets}\ninstall-name: {SYSTEM_LIBRARY}\n"
    # Others are instructions for linkers.
    names = sorted(name for name in system_names() if name.startswith(("_", "dyld_stub_binder")))
    symbols = ", ".join(f"'{name}'" for name in names)
    MACOS_STUBS.mkdir(parents=True, exist_ok=True)
    text = f"{head}exports:\n  - targets: {targets}\n    symbols: [ {symbols} ]\n...\n"
    (MACOS_STUBS / "libSystem.tbd").write_text(text)


def unknown_imports(file: MachO) -> list[str]:
    """Returns the imports of a file that neither the stubs of macOS nor a Python interpreter has."""

    def is_known(name: str, library: str) -> bool:
        if library == SYSTEM_LIBRARY:
            return name in system_names()
        # zig has no stubs of the C++ library: `check-jaccl` compares these imports with those of MLX.
        return library == "/usr/lib/libc++.1.dylib" or (not library and name.startswith(("_Py", "__Py")))

    return [name for name, library in file.imports.items() if not is_known(name, library)]


def check_mac_file(checks: Checks, path: Path, name: str) -> None:
    """Checks a program or library for macOS: system, libraries, imports and signature."""
    file = MachO(path)
    checks.check(file.is_arm64, f"{name} is for Apple silicon")
    checks.check(file.least_system == LEAST_MACOS, f"{name} runs from macOS 14.0 on", file.least_system)
    if path.suffix:
        is_movable = file.name.startswith("@rpath/")
        checks.check(is_movable, f"{name} has no folder of this machine in its name", file.name)
        # Rust's own names, which begin so or end with a digest.
        internal = [one for one in file.exports if re.match(r"__R|_rust_|.*17h[0-9a-f]{16}E$", one)]
        checks.check(not internal, f"{name} exports no internal names", internal)
    others = [one for one in file.libraries if not one.startswith(("/usr/lib/", "/System/Library/"))]
    checks.check(not others, f"{name} needs libraries of the system only", others)
    unknown = unknown_imports(file)
    checks.check(not unknown, f"{name}: the system has all {len(file.imports)} imports", unknown)
    checks.check(file.signature_holds(), f"{name}: its signature is that of its pages")


def check_size(checks: Checks, path: Path, name: str, has_program: bool) -> None:
    """Checks the size of a stripped file, which may contain the program."""
    size, most = path.stat().st_size, MOST_PROGRAM_BYTES if has_program else MOST_LIBRARY_BYTES
    checks.check(size <= most, f"{name} has {size / 1e6:.1f} MB, at most {most / 1e6:.0f}")
