"""A fork server that starts ranks with torch already imported, since the import outlasts most checks.

    python forkserver.py serve DESCRIPTOR          imports torch, serves a listening socket until stdin ends
    python forkserver.py SOCKET PROGRAM [ARG...]   runs like `python PROGRAM ARG...`, or `python -c TEXT`

Launchers start the second form, the client, in place of Python. The client sends its arguments, environment,
working directory and standard files to the server, which forks; the child runs the program. The client
forwards signals to the child and exits as the child does. If the client is killed, so is the child. The
server has no threads and does not import tbccl: a program imports it in its own environment, as in a new
process.

Tests of the ranks' behavior use this server; tests of process start do not.
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
#: Interval at which a supervisor checks whether its child has exited.
_POLL_SECONDS = 0.02


def _receive_exactly(connection: socket.socket, length: int) -> bytes:
    received = b""
    while len(received) < length:
        chunk = connection.recv(length - len(received))
        if not chunk:
            raise SystemExit("forkserver.py: the server closed the connection")
        received += chunk
    return received


def request_process(socket_path: str, program: list[str]) -> int:
    """Runs a program through the server in this process's context; returns its status as of `waitpid`."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    request = {"program": program, "folder": os.getcwd(), "environment": dict(os.environ), "cores": cores}
    text = json.dumps(request).encode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(socket_path)
        for number in _FORWARDED:
            signal.signal(number, lambda number, _: connection.send(bytes([number])))
        files = array.array("i", [0, 1, 2])
        connection.sendmsg([len(text).to_bytes(4, "little")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
        connection.sendall(text)
        return int.from_bytes(_receive_exactly(connection, 4), "little")


def exit_like(status: int) -> None:
    """Ends this process with the exit status or the signal of another one."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(status))


def serve(descriptor: int) -> list[str]:
    """Forks for each request. Returns only in a child, with the program that the child must run."""
    with socket.socket(fileno=descriptor) as listener:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # The server does not wait for supervisors.
        while True:
            ready, _, _ = select.select([listener, 0], [], [])
            if 0 in ready:
                os._exit(0)
            connection, _ = listener.accept()
            if os.fork() == 0:
                break
            connection.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    length, files = _receive_header(connection)
    request = json.loads(_receive_exactly(connection, length))
    child = os.fork()
    if child != 0:
        for file in files:
            os.close(file)
        _supervise(child, connection)
    connection.close()
    return _apply_request(request, files)


def _receive_header(connection: socket.socket) -> tuple[int, list[int]]:
    """Receives a request's length, and the standard files that came with it."""
    files = array.array("i")
    head, ancillary, _, _ = connection.recvmsg(4, socket.CMSG_SPACE(3 * files.itemsize))
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            files.frombytes(data[: len(data) - len(data) % files.itemsize])
    return int.from_bytes(head + _receive_exactly(connection, 4 - len(head)), "little"), list(files)


def _supervise(child: int, connection: socket.socket) -> None:
    """Forwards signals to a child until it exits, then sends its status to the client.

    Kills the child when the client closes the connection.
    """
    while True:
        if select.select([connection], [], [], _POLL_SECONDS)[0]:
            for number in connection.recv(16) or [signal.SIGKILL]:
                os.kill(child, number)
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            try:
                connection.sendall(status.to_bytes(4, "little"))
            except OSError:
                pass  # The client has exited.
            os._exit(0)


def _apply_request(request: dict, files: list[int]) -> list[str]:
    """Applies the client's standard files, directory, environment and cores; returns its program."""
    os.setpgid(0, 0)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    if request["cores"]:
        os.sched_setaffinity(0, request["cores"])
    return request["program"]


def run_program(program: list[str]) -> None:
    """Runs a program as a Python process with these arguments would."""
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
    """Imports the modules of torch that the programs use, without loading other packages' backends."""
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    import torch.distributed.checkpoint
    import torch.distributed.fsdp
    import torch.distributed.optim
    import torch.distributed.tensor.parallel
    import torch.nn.parallel
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook  # noqa: F401


def main() -> None:
    if sys.argv[1] != "serve":
        exit_like(request_process(sys.argv[1], sys.argv[2:]))
    import_torch()
    import gc
    import random

    gc.freeze()
    program = serve(int(sys.argv[2]))
    random.seed()
    import torch

    # The last step of `import torch`, delayed until the environment is the program's.
    if torch._is_device_backend_autoload_enabled():
        torch._import_device_backends()
    run_program(program)


if __name__ == "__main__":
    main()
