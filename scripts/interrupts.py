"""Turns SIGTERM, SIGHUP and Ctrl-C into one exception, and sees to it that nobody meets a traceback."""

from __future__ import annotations

import ctypes
import select
import signal
import sys
from types import FrameType, TracebackType

from .errors import Interrupted

PR_SET_PDEATHSIG = 1
EXIT = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 129}


def install() -> None:
    """Install the handlers; noxfile.py does it when nox loads it, so that nox's own -j parent has them as well."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _raise)
    sys.excepthook = _excepthook
    if "--parallel-worker" in sys.argv:
        # A worker of -j has a session of its own: without this it would live on when nox is killed.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if _has_lost_its_reader():
            # Nox was killed before that took effect.
            raise SystemExit(EXIT["SIGTERM"])


# Helpers


def _has_lost_its_reader() -> bool:
    poll = select.poll()
    poll.register(1, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _raise(number: int, _frame: FrameType | None) -> None:
    # A second one, while the first is being handled, must not cut the saving of results short.
    for other in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(other, signal.SIG_IGN)
    raise Interrupted(signal.Signals(number).name)


def _excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if isinstance(error, Interrupted):
        print(f"interrupted by {error.signal_name}", file=sys.stderr)
        return
    sys.__excepthook__(kind, error, trace)
