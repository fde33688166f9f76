"""The build backend (PEP 517): cargo builds all binaries of the wheel, and this module packs it.

`pip install .` calls this module. One command of cargo builds the extension module, the C library with the
program `tbccl` in it, the program's file, and the libraries for MLX. maturin writes the metadata and the
source archive. It does not compile: cargo would be called for the extension module alone then, choose other
features for the crates that all binaries share, and compile them once more.

The environment variable TBCCL_WHEEL_PROFILE selects cargo's profile: `dist` by default, `dev` for tests.
Cargo.toml, not this module, decides how the code is compiled.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import maturin

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python" / "tbccl"
#: Files that lie beside packages, where Python reads them as it starts.
START = ROOT / "python" / "start"
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
    shutil.copyfile(source, target)
    if strip and source.suffix in ("", ".so", ".dylib"):
        subprocess.run([*strip, target], check=True)
    target.chmod(mode)


def _install_binaries(build_dir: Path, package: Path, is_mac: bool, strip: list[str]) -> None:
    """Copies programs, libraries and headers into the folder of the package."""
    suffix = "dylib" if is_mac else "so"
    # A test counts the instructions of a function by its name, which a stripped module lacks.
    strip_module = [] if PROFILE == "dev" else strip
    _install(build_dir / f"lib_native.{suffix}", package / "_native.abi3.so", 0o755, strip_module)
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


def pack(build_dir: Path, wheels: Path, is_mac: bool, strip: list[str], platform: str | None = None) -> str:
    """Packs a wheel of the binaries in cargo's output folder, and returns its file name.

    `strip` is the command that strips a file; empty to leave files as they are. `platform` is the platform
    tag of a wheel for another machine. `tools/wheels` calls this function for those.
    """
    with tempfile.TemporaryDirectory() as folder:
        ignored = shutil.ignore_patterns("__pycache__", "*.so", "bin", "lib", "include")
        shutil.copytree(PACKAGE, Path(folder) / "tbccl", ignore=ignored)
        for file in (START / "tbccl_mlx.pth", START / "_tbccl_mlx.py"):
            shutil.copyfile(file, Path(folder) / file.name)
        _install_binaries(build_dir, Path(folder) / "tbccl", is_mac, strip)
        info = Path(folder) / maturin.prepare_metadata_for_build_wheel(folder)
        if platform is not None:
            wheel = info / "WHEEL"
            wheel.write_text(re.sub(r"(?m)^(Tag: .*-)\w+$", rf"\g<1>{platform}", wheel.read_text()))
        command = [sys.executable, "-m", "wheel", "pack", "--dest-dir", wheels, folder]
        packed = subprocess.check_output(command, text=True)
    found = re.search(r"tbccl-\S+\.whl", packed)
    assert found, f"`wheel pack` names the file: {packed}"
    return found[0]


def _strip_command() -> list[str]:
    strip = shutil.which("strip")
    return [strip, "-x" if MAC else "--strip-unneeded"] if strip else []


def _build() -> None:
    cargo = [os.environ.get("CARGO", "cargo"), "build", "--profile", PROFILE]
    for package in ("tbccl-bundle", "tbccl-mpi-shim", "tbccl-jaccl", "tbccl-python"):
        cargo += ["-p", package]
    subprocess.run(cargo + FEATURES, cwd=ROOT, check=True)


def get_requires_for_build_wheel(config_settings=None):
    return maturin.get_requires_for_build_wheel(config_settings)


def get_requires_for_build_sdist(config_settings=None):
    return maturin.get_requires_for_build_sdist(config_settings)


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    return maturin.prepare_metadata_for_build_wheel(metadata_directory, config_settings)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    _build()
    return pack(_build_dir(), Path(wheel_directory), MAC, _strip_command())


def build_sdist(sdist_directory, config_settings=None):
    return maturin.build_sdist(sdist_directory, config_settings)
