"""Runs one of MLX's test files, and prints a line for each test: `upstream.py FILE`."""

import runpy
import sys
import unittest
from pathlib import Path


class Result(unittest.TestResult):
    """Prints `@test NAME OUTCOME REASON` as a test ends."""

    def _say(self, test, outcome, reason=""):
        # Written at once: `print` would write word by word, and ranks share the pipe.
        sys.stdout.write(f"@test {test.id().rsplit('.', 1)[-1]} {outcome} {reason}\n")

    def addSuccess(self, test):
        self._say(test, "ok")

    def addSkip(self, test, reason):
        self._say(test, "skipped", reason)

    def addFailure(self, test, err):
        self._say(test, "failed", " ".join(str(err[1]).split()))

    addError = addFailure


file = Path(sys.argv[1])
sys.path.insert(0, str(file.parent))
names = runpy.run_path(str(file), run_name="upstream")
suite = unittest.TestSuite(
    unittest.defaultTestLoader.loadTestsFromTestCase(case)
    for case in names.values()
    if isinstance(case, type) and issubclass(case, unittest.TestCase)
)
suite.run(Result())
