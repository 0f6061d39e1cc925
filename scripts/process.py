"""Runs other programs under a warden, so that whatever happens to this process, none of theirs stays behind."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

LOG_BYTES = 32 << 20
# How long what a command leaves behind may take to end by itself, as multiprocessing's resource tracker does.
GRACE_SECONDS = 1.0
TICK_SECONDS = 0.1
WARDEN = Path(__file__).with_name("warden.py")


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How a command ended.

    ``returncode`` is negative for a signal and None if the command could not be started (``error`` says why);
    ``seconds`` is wall time; ``leftovers`` are the names of the processes it left behind, which were ended, and
    ``survivors`` of those that could not be; ``log_cut`` is the number of bytes that the log leaves out, and
    ``log_error`` why it is not whole otherwise.
    """

    returncode: int | None
    seconds: float
    timed_out: bool = False
    interrupted: bool = False
    error: str = ""
    leftovers: list[str] = []
    survivors: list[str] = []
    log_cut: int = 0
    log_error: str = ""


class LastWords(msgspec.Struct, frozen=True, kw_only=True):
    """What a command gets at its limit: a signal, and so many seconds more to say where it hangs."""

    signal: int
    seconds: float


def run(
    argv: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    log: Path | None = None,
    limit: float | None = None,
    last_words: LastWords | None = None,
    scratch: Sequence[Path] = (),
    orphaned: Sequence[Path] = (),
    stopped: Callable[[], bool] = lambda: False,
    while_running: Callable[[], None] = lambda: None,
) -> Ending:
    """Run ``argv`` and end everything that it started, by its own end or after ``limit`` seconds.

    ``log`` takes both output streams as they come. The warden removes ``scratch`` at the end, and ``orphaned`` too if
    this process is killed by then. About ten times a second, ``while_running`` is called and ``stopped`` asked whether
    to end the command at once. Raises the auditing event ``matrix.process`` with ``argv``.
    """
    sys.audit("matrix.process", argv)
    order = {
        "argv": list(argv),
        "cwd": str(cwd),
        "env": dict(env),
        "log": str(log) if log else None,
        "log_bytes": LOG_BYTES,
        "limit": limit,
        "grace": GRACE_SECONDS,
        "last_signal": last_words.signal if last_words else 0,
        "last_seconds": last_words.seconds if last_words else 0.0,
        "scratch": [str(path) for path in scratch],
        "orphaned": [str(path) for path in (*orphaned, *_own_scratch())],
    }
    with subprocess.Popen(
        [sys.executable, "-I", "-S", str(WARDEN)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as warden:
        assert warden.stdin is not None and warden.stdout is not None
        try:
            with contextlib.suppress(BrokenPipeError):
                warden.stdin.write(json.dumps(order).encode() + b"\n")
                warden.stdin.flush()
            with selectors.DefaultSelector() as selector:
                selector.register(warden.stdout, selectors.EVENT_READ)
                while not selector.select(TICK_SECONDS) and not stopped():
                    while_running()
        finally:
            # Its input's end tells the warden to end the command, if it runs yet; it answers when all is gone.
            with contextlib.suppress(BrokenPipeError):
                warden.stdin.close()
            answer = warden.stdout.read()
    # There are two answers if the keeper was killed after its own, and none if the guard was killed as well.
    for line in answer.splitlines():
        with contextlib.suppress(msgspec.DecodeError):
            return msgspec.json.decode(line, type=Ending)
    return Ending(returncode=None, seconds=0.0, error=f"{argv[0]}: its warden was killed")


def capture(
    argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], limit: float | None = None
) -> tuple[Ending, str]:
    """Run ``argv`` and return its ending and what it printed."""
    handle, name = tempfile.mkstemp(prefix="tnm-")
    os.close(handle)
    log = Path(name)
    try:
        ending = run(argv, cwd=cwd, env=env, log=log, limit=limit, orphaned=[log])
        return ending, log.read_text(errors="replace")
    finally:
        log.unlink(missing_ok=True)


def started(pid: int) -> str:
    """Return when a process started, in clock ticks since boot; an empty string if there is none.

    Process ids come again, the pair of both doesn't.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


# Helpers


def _own_scratch() -> list[Path]:
    """Return the temporary folder that pipeline has made for this process alone, if it has."""
    folder = Path(tempfile.gettempdir())
    return [folder] if folder.name.startswith(f"tnm-{os.getpid()}-") else []
