"""Runs other programs under a warden, so that whatever happens to this process, none of theirs stays behind."""

from __future__ import annotations

import json
import os
import selectors
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

LOG_BYTES = 32 << 20
TICK_SECONDS = 0.1
WARDEN = Path(__file__).with_name("warden.py")
_STOP = os.pipe()


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How a command ended.

    ``returncode`` is negative for a signal and None if the command could not be started (``error`` says why);
    ``seconds`` is wall time; ``leftovers`` are the names of the processes it left behind, which were ended;
    ``log_cut`` is the number of bytes that the log leaves out.
    """

    returncode: int | None
    seconds: float
    timed_out: bool = False
    interrupted: bool = False
    error: str = ""
    leftovers: list[str] = []
    log_cut: int = 0


def run(
    argv: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    log: Path | None = None,
    limit: float | None = None,
    scratch: Sequence[Path] = (),
    while_running: Callable[[], None] | None = None,
) -> Ending:
    """Run ``argv`` and end everything that it started, by its own end or after ``limit`` seconds.

    ``log`` takes both output streams as they come. ``scratch`` folders are removed at the end, by the warden, so that
    they go even when this process is killed. ``while_running`` is called about ten times a second.
    """
    order = {
        "argv": list(argv),
        "cwd": str(cwd),
        "env": dict(env),
        "log": str(log) if log else None,
        "log_bytes": LOG_BYTES,
        "limit": limit,
        "scratch": [str(path) for path in scratch],
    }
    with subprocess.Popen(
        [sys.executable, "-I", "-S", str(WARDEN)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as warden:
        assert warden.stdin is not None and warden.stdout is not None
        try:
            warden.stdin.write(json.dumps(order).encode() + b"\n")
            warden.stdin.flush()
            with selectors.DefaultSelector() as selector:
                selector.register(warden.stdout, selectors.EVENT_READ)
                selector.register(_STOP[0], selectors.EVENT_READ)
                while not (ready := selector.select(TICK_SECONDS if while_running else None)):
                    assert while_running is not None
                    while_running()
            if all(key.fd == _STOP[0] for key, _ in ready):
                warden.stdin.close()
            answer = warden.stdout.read()
        except BaseException:
            # Closing its input tells the warden to end the command; it answers when all is gone.
            warden.stdin.close()
            warden.stdout.read()
            raise
    if not answer:
        return Ending(returncode=None, seconds=0.0, interrupted=True, error=f"{argv[0]}: its warden was killed")
    return msgspec.json.decode(answer, type=Ending)


def stop_all() -> None:
    """End every command that runs now or is asked for later, in whatever thread; each returns as interrupted."""
    os.write(_STOP[1], b"x")


def capture(
    argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], limit: float | None = None
) -> tuple[Ending, str]:
    """Run ``argv`` and return its ending and what it printed."""
    handle, name = tempfile.mkstemp(prefix="tnm-")
    os.close(handle)
    log = Path(name)
    try:
        ending = run(argv, cwd=cwd, env=env, log=log, limit=limit)
        return ending, log.read_text(errors="replace")
    finally:
        log.unlink(missing_ok=True)


def as_typed(argv: Sequence[str], cwd: Path | None = None) -> str:
    """Return a command as a person would type it."""
    line = shlex.join(str(part) for part in argv)
    return f"cd {shlex.quote(str(cwd))} && {line}" if cwd else line
