"""The extension module with groups of MLX's own kind, compiled at first use.

MLX promises no binary interface: such a module fits one version of MLX, and only if it was compiled with the
version of nanobind that MLX was. So the package has its source, and the system's C++ compiler makes a module
for the installed MLX, once, in the user's cache folder (`$XDG_CACHE_HOME/tbccl/mlx`, `~/.cache/tbccl/mlx`).
Modules that no process has used for 60 days are removed when another one is compiled.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.machinery import ExtensionFileLoader
from importlib.metadata import version
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import mlx.core as mx

import tbccl
from tbccl.mlx._versions import nanobind_remedy

__all__ = ["Unavailable", "module"]

_NAME = "tbccl_mlx_native"
_SOURCES = Path(__file__).parent / "native"
_COMPILERS = ("c++", "g++", "clang++")
_COMPILE_SECONDS = 300
#: Time without a use after which a module is removed.
_UNUSED_SECONDS = 60 * 24 * 3600
#: Flags of MLX's own modules. A module shares Python types with others of the same nanobind domain only.
_FLAGS = "-std=c++20 -O2 -fPIC -shared -fvisibility=hidden -fno-strict-aliasing -DNDEBUG -DNB_DOMAIN=mlx"


class Unavailable(Exception):
    """The reason why there is no module here, with the remedy."""


def module(library: Path) -> ModuleType:
    """Returns the module, after compiling it if the cache folder has none for this MLX.

    Args:
        library: The libtbccl that it calls.

    Raises:
        Unavailable: Something is missing, or the module does not fit MLX.
    """
    folder = _cache_folder()
    command = _command()
    path = folder / _key(command) / f"{_NAME}.so"
    try:
        if not path.exists():
            with _locked(folder):
                # Another rank may have compiled it meanwhile.
                if not path.exists():
                    _compile(command, path)
                    _remove_unused(folder, path)
        with suppress(OSError):
            os.utime(path.parent)  # the time of the latest use
        loaded = _load(path)
        loaded.load(str(library), tbccl.__version__)
    except (ImportError, OSError, RuntimeError) as error:
        raise Unavailable(f"{path} cannot be used: {error}") from error
    try:
        # A group is converted to MLX's Python type only if both modules have the same version of nanobind.
        loaded.world()
    except TypeError as error:
        raise Unavailable(
            f"MLX {mx.__version__} was not compiled with nanobind {version('nanobind')}, which is installed: "
            + nanobind_remedy()
        ) from error
    return loaded


def _cache_folder() -> Path:
    """Returns the folder for modules, which belongs to this user."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    folder = (base if base.is_absolute() else Path.home() / ".cache") / "tbccl" / "mlx"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise Unavailable(f"the cache folder {folder} cannot be made: {error.strerror}") from error
    status = folder.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise Unavailable(f"others may write to the cache folder {folder}: chmod go-w, or set XDG_CACHE_HOME")
    return folder


def _command() -> list[str]:
    """Returns the compiler's command without its output.

    Raises:
        Unavailable: The compiler, nanobind or a header is missing.
    """
    compiler = shlex.split(os.environ.get("CXX", "")) or [
        found for found in map(shutil.which, _COMPILERS) if found
    ][:1]
    if not compiler:
        raise Unavailable("there is no C++ compiler (c++, g++, clang++): install one, or set CXX")
    spec = find_spec("nanobind")
    if spec is None or spec.origin is None:
        raise Unavailable(f"nanobind is not installed: {nanobind_remedy()}")
    nanobind, of_mlx = Path(spec.origin).parent, Path(mx.__file__).parent
    of_python = Path(sysconfig.get_paths()["include"])
    for header, remedy in [
        (of_python / "Python.h", "install python3-dev"),
        (of_mlx / "include/mlx/distributed/distributed_impl.h", "pip install --force-reinstall mlx"),
    ]:
        if not header.exists():
            raise Unavailable(f"{header} is missing: {remedy}")
    robin_map = nanobind / "ext" / "robin_map" / "include"
    includes = [f"-I{path}" for path in (nanobind / "include", robin_map, of_mlx / "include", of_python)]
    sources = [str(_SOURCES / "group.cpp"), str(nanobind / "src" / "nb_combined.cpp")]
    return [*compiler, *_FLAGS.split(), *includes, *sources, f"-L{of_mlx / 'lib'}", "-lmlx"]


def _key(command: list[str]) -> str:
    """Returns a name that changes with everything that the module depends on."""
    versions = [tbccl.__version__, mx.__version__, version("nanobind"), sysconfig.get_config_var("SOABI")]
    parts = [*command, *versions]
    digest = hashlib.sha256("\0".join(parts).encode())
    for source in sorted(_SOURCES.iterdir()):
        digest.update(source.read_bytes())
    # A rebuilt MLX may have the same version.
    digest.update(str((Path(mx.__file__).parent / "lib" / "libmlx.so").stat().st_size).encode())
    return digest.hexdigest()[:24]


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keeps other ranks of this host from compiling at the same time."""
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _compile(command: list[str], path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    # Written beside the module, so that a rank never opens half of it.
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / path.name
        try:
            done = subprocess.run(
                [*command, "-o", str(made)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_COMPILE_SECONDS,
            )
        except subprocess.TimeoutExpired as error:
            raise Unavailable(f"{command[0]} was not done after {_COMPILE_SECONDS} s") from error
        except OSError as error:
            raise Unavailable(f"{command[0]} cannot be run: {error.strerror}") from error
        if done.returncode != 0:
            first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[:500])
            raise Unavailable(f"{command[0]} cannot compile groups for MLX {mx.__version__}: {first}")
        made.replace(path)


def _remove_unused(folder: Path, new: Path) -> None:
    """Removes modules that no process has used for long when a new one is made. The folder is locked."""
    now = new.stat().st_mtime
    for other in folder.iterdir():
        module = other / f"{_NAME}.so"
        if module.exists() and now - other.stat().st_mtime > _UNUSED_SECONDS:
            # A process that has loaded it keeps its file.
            shutil.rmtree(other, ignore_errors=True)


def _load(path: Path) -> ModuleType:
    spec = spec_from_file_location(_NAME, path, loader=ExtensionFileLoader(_NAME, str(path)))
    assert spec is not None and spec.loader is not None
    loaded = module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded
