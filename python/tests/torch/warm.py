"""Ranks that need not import torch, which takes longer than most of what they check.

    python warm.py serve DESCRIPTOR          imports torch, and serves a listening socket, until its stdin ends
    python warm.py SOCKET PROGRAM [ARG...]   a process like `python PROGRAM ARG...`; `-c TEXT` is a program, too

The second is what launchers start in the place of Python. It hands its arguments, environment, folder and standard files to
the server, which forks; the child becomes the program. Whoever asked passes signals on to it and ends as it does, and when
who asked is killed, so is the child. The server has no threads and has not touched tbccl: what a program needs of that is
imported in its own environment, as in a new process.

This is for tests of what ranks do. Tests of how processes start start them.
"""

from __future__ import annotations

import array
import json
import os
import select
import signal
import socket
import sys

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
#: How often it is looked whether a child has ended.
_LOOK_SECONDS = 0.02


def _exactly(line: socket.socket, length: int) -> bytes:
    found = b""
    while len(found) < length:
        more = line.recv(length - len(found))
        if not more:
            raise SystemExit("warm.py: the server of warm processes is gone")
        found += more
    return found


def ask(place: str, program: list[str]) -> int:
    """Has the server start a program with what this process has, and waits for its end: the status, as of `waitpid`."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    words = {"program": program, "folder": os.getcwd(), "environment": dict(os.environ), "cores": cores}
    text = json.dumps(words).encode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.connect(place)
        for number in _FORWARDED:
            signal.signal(number, lambda number, _: line.send(bytes([number])))
        files = array.array("i", [0, 1, 2])
        line.sendmsg([len(text).to_bytes(4, "little")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
        line.sendall(text)
        return int.from_bytes(_exactly(line, 4), "little")


def end_as(status: int) -> None:
    """Ends this process as another one has ended."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(status))


def serve(descriptor: int) -> list[str]:
    """Forks for each request. Returns only in a child, which is to become the program that it returns."""
    with socket.socket(fileno=descriptor) as door:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for who keeps a child
        while True:
            ready, _, _ = select.select([door, 0], [], [])
            if 0 in ready:
                os._exit(0)
            line, _ = door.accept()
            if os.fork() == 0:
                break
            line.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    length, files = _begun(line)
    words = json.loads(_exactly(line, length))
    child = os.fork()
    if child != 0:
        for file in files:
            os.close(file)
        _keep(child, line)
    line.close()
    return _like(words, files)


def _begun(line: socket.socket) -> tuple[int, list[int]]:
    """How long a request is, and the standard files that came with it."""
    files = array.array("i")
    head, more, _, _ = line.recvmsg(4, socket.CMSG_SPACE(3 * files.itemsize))
    for level, kind, data in more:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            files.frombytes(data[: len(data) - len(data) % files.itemsize])
    return int.from_bytes(head + _exactly(line, 4 - len(head)), "little"), list(files)


def _keep(child: int, line: socket.socket) -> None:
    """Passes signals on to a child until it ends, and says how it did. It ends with who has asked for it."""
    while True:
        if select.select([line], [], [], _LOOK_SECONDS)[0]:
            for number in line.recv(16) or [signal.SIGKILL]:
                os.kill(child, number)
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            try:
                line.sendall(status.to_bytes(4, "little"))
            except OSError:
                pass  # it is gone
            os._exit(0)


def _like(words: dict, files: list[int]) -> list[str]:
    """Gives this process what another one has: its standard files, folder, environment, cores. The program and its arguments."""
    os.setpgid(0, 0)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(words["folder"])
    os.environ.clear()
    os.environ.update(words["environment"])
    if words["cores"]:
        os.sched_setaffinity(0, words["cores"])
    return words["program"]


def become(program: list[str]) -> None:
    """Carries out a program as Python does that is started with these arguments."""
    if program[0] == "-c":
        name, text, folder, sys.argv = "<string>", program[1], "", ["-c", *program[2:]]
    else:
        name, folder, sys.argv = program[0], os.path.dirname(os.path.abspath(program[0])), program
        with open(name, encoding="utf-8") as file:
            text = file.read()
    sys.path[0] = folder
    main = type(sys)("__main__")
    main.__dict__.update(__file__=name, __builtins__=__builtins__)
    sys.modules["__main__"] = main
    exec(compile(text, name, "exec", dont_inherit=True), main.__dict__)


def import_torch() -> None:
    """Imports what programs here need of torch, and nothing that it would load of other packages by itself."""
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    import torch.distributed.checkpoint
    import torch.distributed.fsdp
    import torch.distributed.optim
    import torch.distributed.tensor.parallel
    import torch.nn.parallel
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook  # noqa: F401


def main() -> None:
    if sys.argv[1] != "serve":
        end_as(ask(sys.argv[1], sys.argv[2:]))
    import_torch()
    import gc
    import random

    gc.freeze()
    program = serve(int(sys.argv[2]))
    random.seed()
    import torch

    # What `import torch` ends with, now that the environment is the program's.
    if torch._is_device_backend_autoload_enabled():
        torch._import_device_backends()
    become(program)


if __name__ == "__main__":
    main()
