"""What torch offers with its own backends besides operations."""

from __future__ import annotations

from importlib.metadata import version

import pytest
from jobs import JobResult, job

#: Version of torch: major and minor.
TORCH = tuple(map(int, version("torch").split(".")[:2]))


def check_all_ranks_print(result: JobResult, word: str, ranks: int) -> None:
    output = result.expect_success()
    assert output.count(word) == ranks, output[-4000:]


@pytest.mark.skipif(TORCH < (2, 15), reason="torch has no backends in Python")
@pytest.mark.parametrize("ranks", [2, 3])
def test_the_interface_of_torchs_own_backends(ranks: int) -> None:
    check_all_ranks_print(job("interface.py", ranks=ranks), "checks of the interface passed", ranks)


def test_ddp_trains_in_torchs_detailed_debug_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL")
    result = job("training.py", "train_ddp", "train_fsdp2", without_forkserver=True)
    check_all_ranks_print(result, "ways of training passed", 2)
