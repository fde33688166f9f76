"""Events of the library as records of Python's `logging`, by the logger `tbccl` and its children.

`connect` is called before each communicator is made. If the program has configured `logging` by then, a
daemon thread passes events on to it; otherwise the library prints warnings on stderr itself.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading

from tbccl import _native

#: Level of events that are more detailed than DEBUG.
TRACE = 5

_logger = logging.getLogger("tbccl")
_lock = threading.Lock()
#: The process whose thread passes events on; None without one.
_pump_pid: int | None = None


def connect() -> None:
    """Passes events on to `logging` from now on, if the program has configured it."""
    global _pump_pid
    if not _logger.hasHandlers() or not _native.queue_events(_logger.getEffectiveLevel()):
        return
    if _pump_pid == os.getpid():
        return
    if _pump_pid is None:
        atexit.register(flush)
    _pump_pid = os.getpid()
    if logging.getLevelName(TRACE).startswith("Level "):
        logging.addLevelName(TRACE, "TRACE")
    threading.Thread(target=_pump, name="tbccl-log", daemon=True).start()


def flush() -> None:
    """Passes on the events that are queued now."""
    _pass_on(0.0)


def _pump() -> None:
    while True:
        _pass_on(1.0)


def _pass_on(timeout: float) -> None:
    """Passes on queued events, and waits for the first one. The lock keeps their order."""
    with _lock:
        for level, target, rank, message in _native.take_events(timeout):
            logger = logging.getLogger(target.replace("::", "."))
            if logger.isEnabledFor(level):
                record = logger.makeRecord(logger.name, level, "tbccl", 0, message, (), None)
                record.tbccl_rank = rank
                logger.handle(record)
