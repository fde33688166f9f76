"""PyTorch's own tests of distributed backends, run over tbccl.

    tbccl run -n 4 -- python python/tests/torch/suite.py
    tbccl run -n 4 -- python python/tests/torch/suite.py --verbose test_all_reduce_sum test_barrier
    tbccl run -n 8 -- python python/tests/torch/suite.py    # groups are tested with 8 ranks only

The tests are part of torch's wheel (`torch.testing._internal.distributed.distributed_test`). In torch each
test starts its own processes, which takes longer than the test. Here the processes persist, and each test
gets its own groups, store and folder. Many tests query the backend's name to know its features: they get
gloo, the CPU backend with the most features. `--backend gloo` runs gloo itself, to compare failures.

Rank 0 prints a line for each test that fails, and at the end how many passed, failed and were skipped. The
exit status is 1 if any failed.
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
# Some tests open sockets of torch's own, which must stay on this host.
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import torch
import torch.distributed as dist
from torch.testing._internal import common_distributed, common_utils
from torch.testing._internal.distributed import distributed_test

import tbccl.torch  # noqa: F401

#: Tests that do not apply to tbccl, each with the reason.
EXCLUDED: dict[str, str] = {
    "test_get_backend": "expects the name gloo",
    "test_Backend_enum_class": "expects the name gloo",
    # torch 2.12; later versions skip it on Linux.
    "test_barrier_timeout_arg": "expects gloo's words for a timeout",
}

#: Timeout of a call. Shorter than torch's, so that failing tests end sooner.
CALL_SECONDS = 30
#: Timeout of a test, after which the run ends and prints the stacks of all threads.
TEST_SECONDS = 150

Base = distributed_test.DistributedTest._DistTestBase


class Case(Base, common_utils.TestCase):
    """A test case, with the attributes that torch's own runner provides."""

    rank = 0
    file_name = ""

    @property
    def world_size(self) -> str:
        return os.environ["WORLD_SIZE"]

    @property
    def init_method(self) -> str:
        return f"file://{self.file_name}"


def select_tests(names: list[str]) -> list[str]:
    """Returns the tests to run, in the order of their names."""
    known = sorted(name for name in dir(Case) if name.startswith("test_"))
    if names:
        if unknown := set(names) - set(known):
            sys.exit(f"unknown tests: {', '.join(sorted(unknown))}")
        return [name for name in known if name in names]
    return [name for name in known if name not in EXCLUDED]


def run_test(name: str, backend: str, test_folder: str, store: dist.Store) -> tuple[str, str]:
    """Runs a test on this rank; returns passed, skipped or failed, and the reason."""
    case = Case(name)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    case.rank, case.file_name = rank, os.path.join(test_folder, "init")
    os.environ["TEMP_DIR"] = test_folder
    distributed_test.Barrier.barrier_id = 0
    # For tests that destroy the group and create another one.
    distributed_test.INIT_METHOD = f"file://{test_folder}/again"
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
    except ValueError as error:
        # torch 2.8 raises this for a monitored barrier on all ranks, before it calls the backend.
        if "only implemented for GLOO" in str(error):
            return "skipped", str(error)
        return failure_verdict(backend)
    except SystemExit as left:
        skips = {skip.exit_code: skip.message for skip in common_distributed.TEST_SKIPS.values()}
        if left.code == 0:
            return "passed", ""
        return "skipped", skips.get(left.code, f"exit status {left.code}")
    except BaseException:
        return failure_verdict(backend)


def failure_verdict(backend: str) -> tuple[str, str]:
    """Returns the verdict on a test whose exception is being handled, and aborts the group."""
    if dist.is_initialized() and backend == "tbccl":
        dist.group.WORLD.abort()  # The other ranks must not wait for this one.
    return "failed", traceback.format_exc()


def clean_up() -> None:
    """Destroys the groups that a test left behind."""
    with contextlib.suppress(Exception):
        dist.destroy_process_group()
    if dist.is_initialized():
        dist.distributed_c10d._update_default_pg(None)
        world = dist.distributed_c10d._world
        tables = world.pg_map, world.pg_names, world.pg_group_ranks, world.pg_backend_config, world.pg_to_tag
        for table in tables:
            table.clear()
        world.tags_to_pg.clear()
        world.group_count = 0
        dist.distributed_c10d._unregister_all_process_groups()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help="tests to run (default: all)")
    parser.add_argument("--backend", default="tbccl", help="the backend to run over")
    parser.add_argument("--verbose", action="store_true", help="print result and duration of every test")
    arguments = parser.parse_args()
    store, rank, size = next(dist.rendezvous("tbccl://"))
    if rank == 0:
        store.set("place", tempfile.mkdtemp(prefix="tbccl-suite-"))
    root = store.get("place").decode()
    counts: Counter[str] = Counter()
    for number, name in enumerate(select_tests(arguments.names)):
        test_folder = os.path.join(root, name)
        for folder in ("barrier", "test_dir"):
            os.makedirs(os.path.join(test_folder, folder), exist_ok=True)
        faulthandler.dump_traceback_later(TEST_SECONDS, exit=True)
        started = time.monotonic()
        prefix_store = dist.PrefixStore(f"test/{number}", store)
        verdict, reason = run_test(name, arguments.backend, test_folder, prefix_store)
        store.set(f"verdict/{number}/{rank}", f"{verdict} {reason}")
        verdicts = [store.get(f"verdict/{number}/{each}").decode().split(" ", 1) for each in range(size)]
        clean_up()
        # No rank starts the next test while another one still cleans up.
        store.set(f"cleaned/{number}/{rank}", "")
        store.wait([f"cleaned/{number}/{each}" for each in range(size)])
        verdict_words = {word for word, _ in verdicts}
        worst = next(word for word in ("failed", "passed", "skipped") if word in verdict_words)
        counts[worst] += 1
        if rank == 0 and (worst == "failed" or arguments.verbose):
            print(f"{worst}: {name} ({time.monotonic() - started:.1f} s)", flush=True)
            for each, (word, text) in enumerate(verdicts):
                if word == "failed" or (worst == "skipped" and each == 0):
                    print(f"  rank {each}: {text}".replace("\n", "\n    "), flush=True)
    faulthandler.cancel_dump_traceback_later()
    if rank == 0:
        shutil.rmtree(root, ignore_errors=True)
        passed, failed, skipped = counts["passed"], counts["failed"], counts["skipped"]
        print(f"{passed} passed, {failed} failed, {skipped} skipped", flush=True)
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
