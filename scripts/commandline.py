"""Reads what stands behind ``--`` of a session."""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn

MISUSE = 2
MOST_RERUNS = 10


class Parser(argparse.ArgumentParser):
    """Ends the process with status 2 and one line, ``hint`` at its end, where the arguments are wrong."""

    def __init__(self, session: str, hint: str) -> None:
        super().__init__(prog=f"nox -s {session} --", add_help=False, allow_abbrev=False)
        self.hint = hint

    def error(self, message: str) -> NoReturn:
        """End the process."""
        print(f"{self.prog}: {message}; {self.hint}", file=sys.stderr)
        raise SystemExit(MISUSE)

    def check_reruns(self, reruns: int) -> None:
        """End the process unless this is a sane number of reruns."""
        if not 0 <= reruns <= MOST_RERUNS:
            self.error(f"--reruns {reruns}: expected a number from 0 to {MOST_RERUNS}")
