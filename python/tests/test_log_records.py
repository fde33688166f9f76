"""The library's events as records of Python's `logging`."""

from __future__ import annotations

import pytest
from conftest import SHM, TCP, Transport, run


@pytest.mark.parametrize("transport", [SHM, TCP], ids=lambda transport: transport.name)
def test_a_program_that_has_configured_logging_gets_the_events(transport: Transport) -> None:
    assert run(transport, 2, "log_records.py").count("survived") == 2
