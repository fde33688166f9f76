"""PyTorch's own tests of distributed backends, run over tbccl.

    tbccl run -n 4 -- python python/tests/torch/suite.py
    tbccl run -n 4 -- python python/tests/torch/suite.py --verbose test_all_reduce_sum test_barrier
    tbccl run -n 8 -- python python/tests/torch/suite.py    # groups are tested with 8 ranks only

The tests are in the wheel of torch (`torch.testing._internal.distributed.distributed_test`) and nobody of this project wrote
them. There each test starts its processes anew, which costs more than the tests; here the processes stay, and each test has
groups, a store and a folder of its own. Many tests ask which backend they have, to know what it can do: they are told gloo,
which can do most on processors. `--backend gloo` runs gloo itself, to see what of a failure is ours.

Rank 0 prints a line for each test that fails, and in the end how many passed, failed and were skipped. Exit status 1 if any
failed.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import io
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
import unittest
import warnings
from collections import Counter
from datetime import timedelta

os.environ.setdefault("BACKEND", "gloo")
os.environ.setdefault("WORLD_SIZE", "1")
# Sockets of torch's own that tests open are for this host.
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import torch
import torch.distributed as dist
from torch.testing._internal import common_distributed, common_utils
from torch.testing._internal.distributed import distributed_test

import tbccl.torch  # noqa: F401

#: Tests that say nothing about us, and why.
EXCLUDED: dict[str, str] = {
    "test_get_backend": "asks for the name gloo, which is not ours",
    "test_Backend_enum_class": "asks for the name gloo, which is not ours",
}

#: How long a call may wait for others. Shorter than torch's, for tests that fail.
CALL_SECONDS = 30
#: After so long a test hangs, and the run ends with the stacks of all threads.
TEST_SECONDS = 150

Base = distributed_test.DistributedTest._DistTestBase


class Case(Base, common_utils.TestCase):
    """A test, with what torch's own test cases have of their surroundings."""

    rank = 0
    file_name = ""

    @property
    def world_size(self) -> str:
        return os.environ["WORLD_SIZE"]

    @property
    def init_method(self) -> str:
        return f"file://{self.file_name}"


def named(names: list[str]) -> list[str]:
    """The tests to run, in the order of their names."""
    known = sorted(name for name in dir(Case) if name.startswith("test_"))
    if names:
        if unknown := set(names) - set(known):
            sys.exit(f"there are no tests {', '.join(sorted(unknown))}")
        return [name for name in known if name in names]
    return [name for name in known if name not in EXCLUDED]


def carried_out(name: str, backend: str, place: str, store: dist.Store) -> tuple[str, str]:
    """What became of a test on this rank: passed, skipped or failed, and why."""
    case = Case(name)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    case.rank, case.file_name = rank, os.path.join(place, "init")
    os.environ["TEMP_DIR"] = place
    distributed_test.Barrier.barrier_id = 0
    # For tests that end the group and make another one.
    distributed_test.INIT_METHOD = f"file://{place}/again"
    test = getattr(case, name)
    if getattr(test, "__unittest_skip__", False):
        return "skipped", test.__unittest_skip_why__
    try:
        seconds = distributed_test.CUSTOM_PG_TIMEOUT.get(name, CALL_SECONDS)
        limit = timedelta(seconds=seconds)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=limit)
        random.seed(0)
        torch.manual_seed(0)
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            test()
        return "passed", ""
    except unittest.SkipTest as skip:
        return "skipped", str(skip)
    except ValueError as refused:
        # What torch 2.8 says of a monitored barrier, on all ranks, before it asks us.
        if "only implemented for GLOO" in str(refused):
            return "skipped", str(refused)
        return failed(backend)
    except SystemExit as left:
        skips = {skip.exit_code: skip.message for skip in common_distributed.TEST_SKIPS.values()}
        return ("passed", "") if left.code == 0 else ("skipped", skips.get(left.code, f"exit status {left.code}"))
    except BaseException:
        return failed(backend)


def failed(backend: str) -> tuple[str, str]:
    """The verdict on a test that has raised what is being handled."""
    if dist.is_initialized() and backend == "tbccl":
        dist.group.WORLD.abort()  # so that nobody waits for this rank
    return "failed", traceback.format_exc()


def clean_up() -> None:
    """Ends what a test has left."""
    with contextlib.suppress(Exception):
        dist.destroy_process_group()
    if dist.is_initialized():
        dist.distributed_c10d._update_default_pg(None)
        world = dist.distributed_c10d._world
        for left in (world.pg_map, world.pg_names, world.pg_group_ranks, world.pg_backend_config, world.pg_to_tag):
            left.clear()
        world.tags_to_pg.clear()
        world.group_count = 0
        dist.distributed_c10d._unregister_all_process_groups()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help="tests to run; all without any")
    parser.add_argument("--backend", default="tbccl", help="the backend to run over")
    parser.add_argument("--verbose", action="store_true", help="print what becomes of every test, and how long it took")
    arguments = parser.parse_args()
    store, rank, size = next(dist.rendezvous("tbccl://"))
    if rank == 0:
        store.set("place", tempfile.mkdtemp(prefix="tbccl-suite-"))
    root = store.get("place").decode()
    counts: Counter[str] = Counter()
    for number, name in enumerate(named(arguments.names)):
        place = os.path.join(root, name)
        for folder in ("barrier", "test_dir"):
            os.makedirs(os.path.join(place, folder), exist_ok=True)
        faulthandler.dump_traceback_later(TEST_SECONDS, exit=True)
        begun = time.monotonic()
        own = dist.PrefixStore(f"test/{number}", store)
        verdict, why = carried_out(name, arguments.backend, place, own)
        store.set(f"verdict/{number}/{rank}", f"{verdict} {why}")
        verdicts = [store.get(f"verdict/{number}/{each}").decode().split(" ", 1) for each in range(size)]
        clean_up()
        # Nobody begins the next test while somebody cleans up after this one.
        store.set(f"cleaned/{number}/{rank}", "")
        store.wait([f"cleaned/{number}/{each}" for each in range(size)])
        words = {word for word, _ in verdicts}
        worst = next(word for word in ("failed", "passed", "skipped") if word in words)
        counts[worst] += 1
        if rank == 0 and (worst == "failed" or arguments.verbose):
            print(f"{worst}: {name} ({time.monotonic() - begun:.1f} s)", flush=True)
            for each, (word, text) in enumerate(verdicts):
                if word == "failed" or (worst == "skipped" and each == 0):
                    print(f"  rank {each}: {text}".replace("\n", "\n    "), flush=True)
    faulthandler.cancel_dump_traceback_later()
    if rank == 0:
        shutil.rmtree(root, ignore_errors=True)
        print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped", flush=True)
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
