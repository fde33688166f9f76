"""The package in a process: bad input, threads, forks, exit, and a missing launcher."""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, SHM, environment, fabric_command, program, run, start, wait_for

import tbccl
from tbccl import _native

LINUX = sys.platform == "linux"


def python(source: str, *arguments: str, **variables: str) -> tuple[int, str]:
    """Runs a program text in a new process."""
    return wait_for(start([sys.executable, "-c", source, *arguments], **variables))


def test_bad_input_is_refused_with_a_remedy_and_harms_nothing() -> None:
    run(SHM, 2, "bad_input.py")


@pytest.mark.skipif(not LINUX, reason="asks /proc")
def test_nothing_grows_over_10_000_mixed_asynchronous_calls() -> None:
    run(SHM, 2, "growth.py", "10000")


def test_threads_share_a_communicator_and_have_some_of_their_own() -> None:
    run(SHM, 2, "threads.py")


def test_without_a_launcher_it_says_which_variables_are_missing_and_how_to_launch() -> None:
    status, output = python("import tbccl; tbccl.init()")
    assert status == 1
    assert "BootstrapError" in output and "TBCCL_RANK is not set" in output, output
    assert "tbccl run -n" in output, output
    status, output = python("import tbccl; tbccl.init()", RANK="1")
    assert "RANK is set and WORLD_SIZE is not set" in output, output


def test_one_rank_alone_by_a_unique_id() -> None:
    status, output = python(
        "import tbccl; comm = tbccl.init(tbccl.unique_id(), 0, 1)\n"
        "x = bytearray(b'abc'); assert bytes(comm.all_reduce(x)) == b'abc'\n"
        "import array; y = comm.all_reduce(array.array('d', [1, 2]))\n"
        "assert y.tolist() == [1.0, 2.0] and y.format == 'd'\n"
        "z = tbccl.empty(3, 'bf16'); assert z.dtype == 'bfloat16'\n"
        "assert memoryview(z).format == 'H' and len(z) == 3"
    )
    assert status == 0, output


def test_threads_of_a_process_make_communicators_at_the_same_time() -> None:
    status, output = python(
        "import tbccl, threading\n"
        "uid, sums = tbccl.unique_id(), []\n"
        "def join(rank):\n"
        "    with tbccl.init(uid, rank, 2, timeout=60) as comm:\n"
        "        sums.append(bytes(comm.all_reduce(bytearray([rank + 1]))))\n"
        "threads = [threading.Thread(target=join, args=(rank,)) for rank in range(2)]\n"
        "for thread in threads: thread.start()\n"
        "for thread in threads: thread.join()\n"
        "assert sums == [bytes([3])] * 2, sums"
    )
    assert status == 0, output


def test_a_process_that_ends_without_closing_ends_well() -> None:
    status, output = python(
        "import tbccl, numpy as np; comm = tbccl.init(tbccl.unique_id(), 0, 1)\n"
        "works = [comm.all_reduce_async(np.ones(1000)) for _ in range(100)]"
    )
    assert status == 0 and output == "", output


FORK = """
import os, sys, tbccl
comm = tbccl.init(tbccl.unique_id(), 0, 1)
work = comm.barrier_async()
work.wait()
kept = tbccl.empty(3, "uint8")
memoryview(kept)[:] = b"777"
pid = os.fork()
if pid == 0:
    refused = []
    for call in (comm.barrier, work.wait, tbccl.unique_id, lambda: tbccl.empty(3), comm.abort):
        try:
            call()
        except tbccl.UsageError as error:
            refused.append("forked" in str(error))
    del kept  # Is memory that the parent still uses.
    del comm, work  # Must not wait for threads that the child does not have.
    sys.exit(0 if refused == [True] * 5 else 1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert bytes(memoryview(kept)) == b"777"
comm.barrier()
"""


def test_a_forked_child_is_told_and_its_parent_goes_on() -> None:
    status, output = python(FORK)
    assert status == 0, output


def test_a_fork_before_the_first_communicator_is_good() -> None:
    status, output = python(
        "import os, tbccl\n"
        "pid = os.fork()\n"
        "comm = tbccl.init(tbccl.unique_id(), 0, 1); comm.barrier()\n"
        "assert pid == 0 or os.waitpid(pid, 0)[1] == 0"
    )
    assert status == 0, output


def test_sources_of_another_version_than_the_module_are_refused() -> None:
    status, output = python(
        "import tbccl._version; tbccl._version.VERSION = '9.9.9'\n"
        "import sys; version = sys.modules['tbccl._version']; native = sys.modules['tbccl._native']\n"
        "for name in [name for name in sys.modules if name == 'tbccl']: del sys.modules[name]\n"
        "import tbccl"
    )
    assert status == 1 and "install the package anew" in output, output


def test_numbers_are_those_of_the_c_header() -> None:
    header = (Path(tbccl.include_path()) / "tbccl.h").read_text()
    constants = re.findall(r"^  tbccl(\w+) = (\d+),", header, re.MULTILINE)
    numbers = {name: int(value) for name, value in constants}
    names = {
        "INT8": "Int8", "UINT8": "Uint8", "INT16": "Int16", "UINT16": "Uint16",
        "INT32": "Int32", "UINT32": "Uint32", "INT64": "Int64", "UINT64": "Uint64",
        "FLOAT16": "Float16", "FLOAT32": "Float32", "FLOAT64": "Float64", "BFLOAT16": "Bfloat16",
        "BOOL": "Bool", "COMPLEX64": "Complex64",
        "SUM": "Sum", "PROD": "Prod", "MAX": "Max", "MIN": "Min", "AVG": "Avg",
        "BAND": "BitAnd", "BOR": "BitOr", "BXOR": "BitXor",
        "CODEC_INT8": "CodecInt8", "CODEC_INT8_BLOCK64": "CodecInt8Block64",
        "CODEC_INT8_BLOCK256": "CodecInt8Block256", "CODEC_BF16": "CodecBf16",
    }  # fmt: skip
    assert {ours: getattr(_native, ours) for ours in names} == {ours: numbers[c] for ours, c in names.items()}


def test_codes_of_exceptions_are_those_of_the_c_header() -> None:
    header = (Path(tbccl.include_path()) / "tbccl.h").read_text()
    source = (Path(tbccl.__file__).parents[0] / "_errors.py").read_text()
    assert "class PeerDiedError" in source and "tbcclPeerDied = 1000" in header
    with pytest.raises(tbccl.InvalidArgumentError) as caught:
        tbccl.Communicator.from_unique_id(b"", 0, 1)
    assert caught.value.code == 4 and "tbcclInvalidArgument = 4" in header


def test_the_package_carries_the_library_the_header_and_the_program() -> None:
    import ctypes

    version = ctypes.c_int()
    assert ctypes.CDLL(tbccl.lib_path()).tbcclGetVersion(ctypes.byref(version)) == 0
    major, minor, patch = (int(part) for part in tbccl.__version__.split("."))
    assert version.value == 10000 * major + 100 * minor + patch
    ctypes.CDLL(tbccl.mpi_lib_path()).MPI_Get_library_version
    commands = [[tbccl.cli_path()], [sys.executable, "-m", "tbccl"]]
    # The command that pip installs beside the interpreter.
    installed = Path(sys.executable).with_name("tbccl")
    if installed.exists():
        commands.append([str(installed)])
    for command in commands:
        completed = subprocess.run(
            [*command, "--version"], capture_output=True, text=True, check=True, env=environment()
        )
        assert tbccl.__version__ in completed.stdout, command


def test_the_c_library_of_the_package_can_be_linked() -> None:
    compiler = next((c for c in ("cc", "gcc", "clang") if any(
        os.access(os.path.join(p, c), os.X_OK) for p in os.environ["PATH"].split(os.pathsep))), None)
    if compiler is None:
        pytest.fail("there is no C compiler: tools/install-missing test")
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        source, built = Path(folder) / "version.c", Path(folder) / "version"
        source.write_text(
            "#include <tbccl.h>\n"
            "int main(void) {\n"
            "  int v;\n"
            "  return tbcclGetVersion(&v) != tbcclSuccess || v != TBCCL_VERSION_CODE;\n"
            "}\n"
        )
        lib = str(Path(tbccl.lib_path()).parent)
        subprocess.run(
            [compiler, str(source), "-I", tbccl.include_path(), "-L", lib, "-ltbccl", f"-Wl,-rpath,{lib}"]
            + ["-o", str(built)],
            check=True,
        )
        assert subprocess.run([built]).returncode == 0


def test_stubs_name_what_the_module_has() -> None:
    stubs = (Path(tbccl.__file__).parent / "_native.pyi").read_text()
    stub_names = set(re.findall(r"^(?:class|def) (\w+)|^(\w+):", stubs, re.MULTILINE))
    stub_names = {name or constant for name, constant in stub_names}
    native_names = {name for name in vars(_native) if not name.startswith("__")} | {"__version__"}
    assert stub_names == native_names, stub_names ^ native_names
    for kind in ("Communicator", "Request", "View"):
        body = re.search(rf"^class {kind}\b.*?(?=^\S|\Z)", stubs, re.MULTILINE | re.DOTALL).group()
        members = set(re.findall(r"^    def (\w+)", body, re.MULTILINE)) - {"__new__"}
        native_members = {name for name in vars(getattr(_native, kind)) if not name.startswith("__")}
        assert members == native_members, (kind, members ^ native_members)


def test_stubs_take_what_the_module_takes() -> None:
    tree = ast.parse((Path(tbccl.__file__).parent / "_native.pyi").read_text())
    kinds = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    functions = [(_native, node) for node in tree.body if isinstance(node, ast.FunctionDef)]
    for kind in kinds:
        methods = (node for node in kind.body if isinstance(node, ast.FunctionDef))
        functions += [(getattr(_native, kind.name), method) for method in methods]
    compared = 0
    for owner, stub in functions:
        if stub.name.startswith("__") or any("property" in ast.dump(one) for one in stub.decorator_list):
            continue
        parameters = inspect.signature(getattr(owner, stub.name)).parameters.values()
        stub_parameters = [*stub.args.posonlyargs, *stub.args.args, *stub.args.kwonlyargs]
        assert [one.name for one in parameters] == [one.arg for one in stub_parameters], stub.name
        defaults = len(stub.args.defaults) + len(stub.args.kw_defaults)
        assert sum(one.default is not one.empty for one in parameters) == defaults, stub.name
        compared += 1
    assert compared > 20, compared


def test_forms_of_a_call_take_the_same_arguments() -> None:
    """The blocking, the asynchronous and the group form, whose calls have no timeouts of their own."""
    compared = 0
    for name in dir(tbccl.Communicator):
        asynchronous = getattr(tbccl.Communicator, f"{name}_async", None)
        if asynchronous is None:
            continue
        parameters = dict(inspect.signature(getattr(tbccl.Communicator, name)).parameters)
        if name in ("send", "recv"):
            # Their timeout limits a wait, which the asynchronous forms do not have. In groups messages are
            # matched by order, without tags.
            parameters.pop("timeout")
            expected = list(inspect.signature(asynchronous).parameters.values())
            assert list(parameters.values()) == expected, name
            continue
        assert parameters == dict(inspect.signature(asynchronous).parameters), name
        parameters.pop("timeout")
        if name != "barrier":
            assert parameters == dict(inspect.signature(getattr(tbccl.Group, name)).parameters), name
        compared += 1
    assert compared >= 15, compared


@pytest.mark.parametrize("transport", ["shm", "tcp", "verbs"])
def test_the_example(transport: str) -> None:
    example = [sys.executable, str(ROOT / "python" / "examples" / "01_numpy_all_reduce.py")]
    run_command = [tbccl.cli_path(), "run", "-n", "4", "--transport", transport, "--"]
    launch = fabric_command(4) if transport == "verbs" else run_command
    status, output = wait_for(start([*launch, *example]))
    assert status == 0 and "mean of 4 ranks" in output, output


def test_programs_start_by_a_file_of_ranks() -> None:
    """The command line as users type it starts ranks that find each other."""
    command = [sys.executable, "-m", "tbccl", "run", "-n", "2", "--", *program("threads.py")]
    status, output = wait_for(start(command))
    assert status == 0, output
