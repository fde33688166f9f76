"""Results of checks, printed as they are found."""

from __future__ import annotations


class Checks:
    """Results, each printed as a line."""

    failed = False

    def check(self, holds: bool, what: str, found: object = "") -> None:
        print(f"{'ok' if holds else 'FAILED'}  {what}" + (f": {found}"[:1000] if found and not holds else ""))
        self.failed |= not holds
