"""The build backend (PEP 517): builds the wheel's other binaries, then calls maturin.

`pip install .` calls this module. Cargo builds the C library with the program `tbccl` in it, the
program's file, and the libraries for MLX, in the same target folder and profile as the extension module. This
module copies them into the package's folder, where maturin picks them up. The environment variable
TBCCL_WHEEL_PROFILE selects cargo's profile: `dist` by default, `dev` for tests.

Cargo.toml, not this module, decides how the code is compiled.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import maturin

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python" / "tbccl"
PROFILE = os.environ.get("TBCCL_WHEEL_PROFILE", "dist")
MAC = sys.platform == "darwin"
# The features of cargo's tests, so that cargo does not build the crates once more for the wheel.
FEATURES = ["--features", "tbccl/test-driver"] if PROFILE == "dev" else []


def _build_dir() -> Path:
    """Returns cargo's output folder of the profile."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    return ROOT / target / {"dev": "debug"}.get(PROFILE, PROFILE)


def _install(source: Path, target: Path, mode: int, strip: list[str]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    # Replaced atomically: running programs keep the old file.
    new = target.with_name(target.name + ".new")
    shutil.copyfile(source, new)
    if strip and source.suffix in ("", ".so", ".dylib"):
        subprocess.run([*strip, new], check=True)
    new.chmod(mode)
    new.replace(target)


def install_binaries(build_dir: Path, package: Path, is_mac: bool, strip: list[str]) -> None:
    """Copies the program, the libraries and the header from cargo's output folder into a package's folder.

    `strip` is the command that strips a file; empty to leave files as they are. `tools/wheels` calls this
    function for files that were built for other machines.
    """
    suffix = "dylib" if is_mac else "so"
    for folder in ("bin", "lib", "include"):
        shutil.rmtree(package / folder, ignore_errors=True)
    _install(build_dir / "tbccl-program", package / "bin" / "tbccl", 0o755, strip)
    library = "libtbccl.0.dylib" if is_mac else "libtbccl.so.0"
    _install(build_dir / f"libtbccl_bundle.{suffix}", package / "lib" / library, 0o755, strip)
    if not is_mac:
        # Wheels cannot contain symbolic links; the linker reads this file as a script that names the library.
        (package / "lib" / "libtbccl.so").write_text("INPUT(libtbccl.so.0)\n")
    for name in (f"libtbccl_mpi.{suffix}", f"libjaccl.{suffix}"):
        # The latter can't be built for another Linux machine, where MLX has no use for it.
        if (build_dir / name).exists():
            _install(build_dir / name, package / "lib" / name, 0o755, strip)
    for name in ("tbccl.h", "tbccl.hpp"):
        _install(ROOT / "ffi" / name, package / "include" / name, 0o644, [])


def _strip_command() -> list[str]:
    strip = shutil.which("strip")
    return [strip, "-x" if MAC else "--strip-unneeded"] if strip else []


def _build_extras() -> None:
    cargo = [os.environ.get("CARGO", "cargo"), "build", "--profile", PROFILE]
    # One command together with the extension module, so that shared crates are built once.
    for package in ("tbccl-bundle", "tbccl-mpi-shim", "tbccl-jaccl", "tbccl-python"):
        cargo += ["-p", package]
    subprocess.run(cargo + FEATURES, cwd=ROOT, check=True)
    install_binaries(_build_dir(), PACKAGE, MAC, _strip_command())


def _settings(config: dict | None) -> dict:
    settings = dict(config or {})
    # With --strip cargo would rebuild the extension module instead of reusing the one built for tests.
    strip = "" if PROFILE == "dev" else " --strip"
    settings.setdefault("build-args", " ".join([f"--profile {PROFILE}{strip}", *FEATURES]))
    return settings


def get_requires_for_build_wheel(config_settings=None):
    return maturin.get_requires_for_build_wheel(config_settings)


def get_requires_for_build_sdist(config_settings=None):
    return maturin.get_requires_for_build_sdist(config_settings)


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    return maturin.prepare_metadata_for_build_wheel(metadata_directory, _settings(config_settings))


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    _build_extras()
    return maturin.build_wheel(wheel_directory, _settings(config_settings), metadata_directory)


def build_sdist(sdist_directory, config_settings=None):
    return maturin.build_sdist(sdist_directory, config_settings)
