"""Functions of the programs of `tbccl selftest`: messages for its report."""

import json
import os
import sys

RANK = int(os.environ.get("TBCCL_RANK", "0"))
SIZE = int(os.environ.get("TBCCL_SIZE", "1"))
REPORT = "please report it with this file"


def tell(kind, message):
    print("@selftest " + json.dumps({kind: message}), flush=True)


def step(text):
    tell("step", text)


def check(verdict, name, text, remedy=""):
    """Reports a check; a pass counts from rank 0 only."""
    kind = "check" if RANK == 0 or verdict == "fail" else "echo"
    fields = {"name": name, "verdict": verdict, "text": str(text), "remedy": remedy}
    tell(kind, {**fields, "relies": "", "details": [], "seconds": 0.0})


class Tests:
    """Counts comparisons; the first one that fails is reported."""

    def __init__(self, name):
        self.name, self.count, self.wrong = name, 0, []

    def same(self, what, is_right):
        self.count += 1
        if not is_right:
            self.wrong.append(what)

    def report(self, rest=""):
        if self.wrong:
            text = f"rank {RANK}: {len(self.wrong)} of {self.count} results are wrong: {self.wrong[0]}"
            check("fail", self.name, text, REPORT)
        else:
            check("pass", self.name, f"{self.count} results right{rest}")
