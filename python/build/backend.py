"""The build backend (PEP 517): builds the wheel's other binaries, then calls maturin.

`pip install .` calls this module. Cargo builds the program `tbccl`, the C library and the libraries for MLX,
in the same target folder and profile as the extension module. This module copies them into the package's
folder, where maturin picks them up. The environment variable TBCCL_WHEEL_PROFILE selects cargo's profile:
`release` by default, `dev` for tests.

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
PROFILE = os.environ.get("TBCCL_WHEEL_PROFILE", "release")
MAC = sys.platform == "darwin"
# The features of cargo's tests, so that cargo does not build the crates once more for the wheel.
FEATURES = ["--features", "tbccl/test-driver"] if PROFILE == "dev" else []


def _build_dir() -> Path:
    """Returns cargo's output folder of the profile."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    return ROOT / target / {"dev": "debug"}.get(PROFILE, PROFILE)


def _install(source: Path, target: Path, mode: int) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    # Replaced atomically: running programs keep the old file.
    new = target.with_name(target.name + ".new")
    shutil.copyfile(source, new)
    strip = shutil.which("strip")
    if strip and source.suffix in ("", ".so", ".dylib"):
        subprocess.run([strip, "-x" if MAC else "--strip-unneeded", new], check=True)
    new.chmod(mode)
    new.replace(target)


def _install_all() -> None:
    build_dir, suffix = _build_dir(), "dylib" if MAC else "so"
    for folder in ("bin", "lib", "include"):
        shutil.rmtree(PACKAGE / folder, ignore_errors=True)
    _install(build_dir / "tbccl", PACKAGE / "bin" / "tbccl", 0o755)
    library = "libtbccl.0.dylib" if MAC else "libtbccl.so.0"
    _install(build_dir / f"libtbccl_c.{suffix}", PACKAGE / "lib" / library, 0o755)
    if not MAC:
        # Wheels cannot contain symbolic links; the linker reads this file as a script that names the library.
        (PACKAGE / "lib" / "libtbccl.so").write_text("INPUT(libtbccl.so.0)\n")
    _install(build_dir / f"libtbccl_mpi.{suffix}", PACKAGE / "lib" / f"libtbccl_mpi.{suffix}", 0o755)
    _install(build_dir / f"libjaccl.{suffix}", PACKAGE / "lib" / f"libjaccl.{suffix}", 0o755)
    _install(ROOT / "ffi" / "tbccl.h", PACKAGE / "include" / "tbccl.h", 0o644)


def _build_extras() -> None:
    cargo = [os.environ.get("CARGO", "cargo"), "build", "--profile", PROFILE]
    # One command together with the extension module, so that shared crates are built once.
    for package in ("tbccl-cli", "tbccl-ffi", "tbccl-mpi-shim", "tbccl-jaccl", "tbccl-python"):
        cargo += ["-p", package]
    subprocess.run(cargo + FEATURES, cwd=ROOT, check=True)
    _install_all()


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
