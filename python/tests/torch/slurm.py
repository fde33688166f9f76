"""A Slurm cluster of two nodes on this machine, whose daemons and files are those of one test run.

Each node has a `slurmd`, and the name of each is an address of the loopback interface, so that tasks find the
first node without a name service. No file outside the cluster's folder is read or written.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from jobs import JobResult, run

#: Addresses that are the names of the nodes.
NODES = ("127.0.0.2", "127.0.0.3")

#: Programs of Slurm and MUNGE, which authenticates its messages.
PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scancel", "sinfo")

#: Time limits for the daemons, which start in about 3 s: to have idle nodes, and to end after SIGTERM.
READY_SECONDS = 60
END_SECONDS = 30

#: Settings without accounting, cgroups and network beyond the loopback interface.
SETTINGS = """
ClusterName=tbccl-test-{pid}
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
NodeName={nodes[0]} NodeHostname={host} NodeAddr={nodes[0]} Port={ports[1]} CPUs=4
NodeName={nodes[1]} NodeHostname={host}-second NodeAddr={nodes[1]} Port={ports[2]} CPUs=4
PartitionName=all Nodes=ALL Default=YES State=UP
"""


def missing_requirement() -> str | None:
    """Returns why this machine can't run a cluster, or None."""
    absent = [name for name in PROGRAMS if shutil.which(name, path=_path()) is None]
    if absent:
        return f"{', '.join(absent)} of Slurm are not installed (tools/install-missing engines)"
    return None if os.geteuid() == 0 else "Slurm's daemons start programs as root only"


def free_ports(number: int) -> list[int]:
    """Returns different ports of the loopback interface that nothing listens on."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(number)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


class Cluster:
    """The daemons of a cluster. Ends them when the context ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._daemons: list[subprocess.Popen[bytes]] = []
        self.settings = folder / "slurm.conf"
        host = socket.gethostname().split(".")[0]
        ports = free_ports(3)
        self.settings.write_text(
            SETTINGS.format(folder=folder, host=host, nodes=NODES, pid=os.getpid(), ports=ports)
        )
        (folder / "state").mkdir()

    def __enter__(self) -> Cluster:
        try:
            self._start_munge()
            self._start("slurmctld", "-D", "-f", str(self.settings))
            for node in NODES:
                self._start("slurmd", "-D", "-N", node, "-f", str(self.settings))
            states = self._wait_for_idle_nodes()
        except BaseException:
            self._end()
            raise
        if states is not None:
            self._end()
            logs = [f"{log.name}:\n{log.read_text()[-2000:]}" for log in sorted(self.folder.glob("*.log"))]
            pytest.fail("\n".join([f"Slurm's nodes were not ready: {states}", *logs]))
        return self

    def __exit__(self, *_: object) -> None:
        # Ends what a failed test has left. The process of a step ends only when slurmctld knows of its end.
        self.run(["scancel", "--user", "root"])
        states = self._wait_for_idle_nodes()
        self._end()
        assert states is None, f"tasks were left: {states}"

    def run(self, command: Sequence[str], **variables: str) -> JobResult:
        """Runs a command of Slurm without the variables of other launchers."""
        settings = {"SLURM_CONF": str(self.settings), "TBCCL_CALIBRATE": "0", **variables}
        prefixes = ("TBCCL_", "SLURM_", "PMI_", "OMPI_")
        foreign = [name for name in os.environ if name.startswith(prefixes) and name not in settings]
        return run(["env", *(part for name in foreign for part in ("-u", name)), *command], **settings)

    def _start_munge(self) -> None:
        key = self.folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        files = ("key-file", "log-file", "pid-file", "seed-file", "socket")
        options = [f"--{name}={self.folder}/munge.{name.removesuffix('-file')}" for name in files]
        # The folder of a test run is for its user only, which MUNGE refuses otherwise.
        self._start("munged", "--foreground", "--force", *options)

    def _start(self, program: str, *arguments: str) -> None:
        command = [shutil.which(program, path=_path()) or program, *arguments]
        log = self.folder / f"{len(self._daemons)}-{program}.log"
        with log.open("wb") as output:
            environment = {**os.environ, "SLURM_CONF": str(self.settings)}
            daemon = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
        self._daemons.append(daemon)

    def _wait_for_idle_nodes(self) -> str | None:
        """Waits until both nodes are there and have no task; returns their states if that takes too long."""
        deadline = time.monotonic() + READY_SECONDS
        states = ""
        while time.monotonic() < deadline and all(daemon.poll() is None for daemon in self._daemons):
            states = self.run(["sinfo", "--noheader", "--Node", "--format", "%N %t"]).output
            if sorted(states.splitlines()) == [f"{node} idle" for node in NODES]:
                return None
            time.sleep(0.2)
        return states

    def _end(self) -> None:
        """Ends the daemons, MUNGE last, since the others need it to end their jobs."""
        for daemon in reversed(self._daemons):
            daemon.terminate()
            try:
                daemon.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def _path() -> str:
    """Returns the folders of programs, with those of daemons, which only root has in its path."""
    return os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
