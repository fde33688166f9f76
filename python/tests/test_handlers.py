"""Signal handlers that use communicators in the midst of this rank's calls."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import SHM, TCP, Transport, run

BOTH = pytest.mark.parametrize("transport", [SHM, TCP], ids=lambda transport: transport.name)


@BOTH
def test_a_handler_that_closes_a_communicator_ends_the_wait_on_it(transport: Transport) -> None:
    assert run(transport, 2, "handlers.py", "closing").count("survived") == 2


@BOTH
def test_a_handler_that_would_wait_for_the_call_it_interrupted_is_told(transport: Transport) -> None:
    assert run(transport, 2, "handlers.py", "waiting_for_itself").count("survived") == 2


@BOTH
def test_ctrl_c_ends_a_call_after_a_handler_has_called_another_communicator(transport: Transport) -> None:
    assert run(transport, 2, "handlers.py", "another_communicator").count("survived") == 2


def test_a_handler_that_calls_init_in_the_midst_of_init_is_told() -> None:
    assert run(SHM, 2, "handlers.py", "joining").count("survived") == 2


def test_a_call_of_a_thread_goes_on_while_the_main_thread_holds_the_gil(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    flag.write_bytes(b"\0")
    assert run(SHM, 2, "handlers.py", "held_gil", str(flag)).count("survived") == 2
