"""Instructions of a small all_reduce by Python, counted by Valgrind.

The other process is not slowed down by Valgrind, so it is always ahead, and the smallest count contains no
wait. What the interpreter executes is part of it.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from pathlib import Path

import pytest
from conftest import HERE, start, wait_for

#: What a call took with CPython 3.11 when this was written, and the most that it may take with any CPython.
BEFORE = 21_090
MOST = 26_000


IS_COUNTED = sys.platform == "linux" and platform.machine() == "x86_64"


@pytest.mark.skipif(not IS_COUNTED, reason="the counts are those of Linux on x86_64")
def test_a_small_all_reduce_takes_few_instructions(tmp_path: Path) -> None:
    if not shutil.which("valgrind"):
        missing = "Valgrind is missing; tools/install-missing installs it"
        assert os.environ.get("TBCCL_TEST_REQUIRE_ALL") != "1", missing
        pytest.skip(missing)
    # What was executed since the last call is written to a file after each.
    after = "--dump-after=_native::comm::Communicator::__pymethod_submit__"
    counts = f"--callgrind-out-file={tmp_path / 'counts'}"
    program = [sys.executable, str(HERE / "ranks" / "counted.py")]
    variables = {"TBCCL_TRANSPORT": "shm", "TBCCL_SLAB_BYTES": "1M"}
    status, output = wait_for(start(["valgrind", "--tool=callgrind", counts, after, *program], **variables))
    assert status == 0, output
    found = [re.search(r"^summary: (\d+)", file.read_text(), re.MULTILINE) for file in tmp_path.iterdir()]
    assert len(found) > 50, "the method that makes calls has another name"
    fewest = min(int(count[1]) for count in found if count)
    print(f"{fewest} instructions per call, {BEFORE} before")
    assert fewest <= MOST, f"{fewest} instructions per call, {BEFORE} before"
