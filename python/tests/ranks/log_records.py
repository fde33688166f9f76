"""The library's events in Python's `logging`: `log_records.py`. Each rank checks the records that it gets."""

from __future__ import annotations

import logging

import numpy as np

import tbccl
from tbccl import _log


class Keep(logging.Handler):
    """Keeps the records that it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


keep = Keep()
logging.basicConfig(level=logging.WARNING, handlers=[keep])
logging.getLogger("tbccl").setLevel(logging.INFO)
logging.getLogger("tbccl.bootstrap").setLevel(logging.WARNING)

comm = tbccl.init()
comm.all_reduce(np.ones(1000))
rank = comm.rank
comm.close()
_log.flush()

found = {(record.name, record.getMessage()) for record in keep.records}
for name, text in [
    ("tbccl.init", f"rank {rank} of 2 on "),
    ("tbccl.init", "transport "),
    ("tbccl.selection", "all_reduce of "),
]:
    assert any(name == logger and text in message for logger, message in found), (name, text, found)
assert all(record.levelno == logging.INFO for record in keep.records), found
assert {record.tbccl_rank for record in keep.records} == {rank}, found  # type: ignore[attr-defined]
assert "tbccl.bootstrap" not in {logger for logger, _ in found}, found
print("survived")
