"""Runs checks by name on this rank, and prints the time of each."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from .common import rank


def run(definitions: Mapping[str, object], selected: Sequence[str]) -> int:
    """Runs the functions `check_...` of a program in their order.

    Args:
        definitions: Names and values of the program, functions or not.
        selected: Names of the functions to run; empty: all checks.

    Returns:
        The number of checks that have passed: the first failure raises.
    """
    checks = {name: value for name, value in definitions.items() if name.startswith("check_")}
    names = selected or list(checks)
    for name in names:
        started = time.monotonic()
        try:
            definitions[name]()
        except BaseException:
            print(f"rank {rank} fails {name}", flush=True)
            raise
        if rank == 0:
            print(f"{name} {time.monotonic() - started:.2f} s", flush=True)
    return len(names)
