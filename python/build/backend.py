"""The build backend: maturin's, after what the wheel carries beside the extension module has been built.

`pip install .` calls this (PEP 517). Cargo builds the program `tbccl`, the C library and the MPI-shaped library, in the same
target folder and profile as the extension module; they are put into the package's folder, where maturin takes them. The
environment variable TBCCL_WHEEL_PROFILE is the profile of cargo, `release` if it is not set; `dev` is for tests.

Nothing here decides how anything is compiled: Cargo.toml does.
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


def _built() -> Path:
    """Where cargo leaves what it builds."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    return ROOT / target / {"dev": "debug"}.get(PROFILE, PROFILE)


def _put(source: Path, target: Path, mode: int) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    # Beside it and then into place: programs that run keep what they have.
    new = target.with_name(target.name + ".new")
    shutil.copyfile(source, new)
    strip = shutil.which("strip")
    if strip and source.suffix in ("", ".so", ".dylib"):
        subprocess.run([strip, "-x" if MAC else "--strip-unneeded", new], check=True)
    new.chmod(mode)
    new.replace(target)


def _put_all() -> None:
    built, suffix = _built(), "dylib" if MAC else "so"
    for folder in ("bin", "lib", "include"):
        shutil.rmtree(PACKAGE / folder, ignore_errors=True)
    _put(built / "tbccl", PACKAGE / "bin" / "tbccl", 0o755)
    _put(built / f"libtbccl_c.{suffix}", PACKAGE / "lib" / ("libtbccl.0.dylib" if MAC else "libtbccl.so.0"), 0o755)
    if not MAC:
        # Wheels have no links. To the linker a file with such a line is the library.
        (PACKAGE / "lib" / "libtbccl.so").write_text("INPUT(libtbccl.so.0)\n")
    _put(built / f"libtbccl_mpi.{suffix}", PACKAGE / "lib" / f"libtbccl_mpi.{suffix}", 0o755)
    _put(ROOT / "ffi" / "tbccl.h", PACKAGE / "include" / "tbccl.h", 0o644)


def _build_extras() -> None:
    cargo = [os.environ.get("CARGO", "cargo"), "build", "--profile", PROFILE]
    # As one command with the extension module, so that crates are built once and for all.
    for package in ("tbccl-cli", "tbccl-ffi", "tbccl-mpi-shim", "tbccl-python"):
        cargo += ["-p", package]
    subprocess.run(cargo, cwd=ROOT, check=True)
    _put_all()


def _settings(given: dict | None) -> dict:
    settings = dict(given or {})
    # With --strip cargo would not take the extension module that it has built for tests.
    strip = "" if PROFILE == "dev" else " --strip"
    settings.setdefault("build-args", f"--profile {PROFILE}{strip}")
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
