"""Runs one command so that nothing of it outlives the command, its limit, or whoever asked for it.

A process of its own (standard library only): it is the sub-reaper of all that the command starts, in whatever session
or process group, and it learns of its caller's end, by SIGKILL too, when its standard input closes. The first line of
its input is a JSON object (what to run; never an argument, which other users could read), its output is one
(process.Ending). It is in fact two, of which each puts things in order if the other is killed: a keeper, which does
the work, below a guard, which waits for the keeper.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
CHUNK = 1 << 16
CLEANUP_SECONDS = 10.0
KILLED = "its warden was killed"
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# What multiprocessing, torch and OpenMP leave in /dev/shm when they are killed; some names tell the process.
SHARED_MEMORY = re.compile(r"(?:torch_|pym-|__KMP_REGISTERED_LIB_)(?P<pid>\d+)|psm_|sem\.mp-")
LIBC = ctypes.CDLL(None)


def main() -> None:
    """Run the order that stands in the first line of standard input and print its ending."""
    order = json.loads(_first_line(sys.stdin.fileno()))
    for number in SIGNALS:
        # A Ctrl-C reaches the whole foreground group; the caller decides what it means and closes our input.
        signal.signal(number, signal.SIG_IGN)
    shared_before = _shared_memory()
    guard_lives, guard = os.pipe()
    keeper = os.fork()
    if not keeper:
        os.close(guard)
        # Out of the guard's session and group: a command that kills its parent's group leaves the guard alone.
        os.setsid()
        _keep(order, guard_lives, shared_before)
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if os.waitpid(keeper, 0)[1]:
        below = _Below()
        below.end()
        ending = {"returncode": -signal.SIGKILL, "seconds": 0.0, "error": KILLED, "survivors": below.survivors}
        _clear_shared_memory(shared_before)
        _finish(order, ending)


def _keep(order: dict[str, Any], guard_lives: int, shared_before: set[str]) -> NoReturn:
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    start = time.monotonic()
    below = _Below()
    log = _Log(order["log_bytes"])
    ending: dict[str, Any] = {}
    try:
        log.open(order["log"])
        child = _start(order)
    except OSError as error:
        ending["error"] = f"{error.filename or order['argv'][0]}: {error.strerror}"
    else:
        below.command = child.pid
        assert child.stdout is not None
        log.source = child.stdout.fileno()
        ending |= _wait(below, log, order, start, guard_lives)
    ending["seconds"] = time.monotonic() - start
    below.end(grace=0.0 if ending.get("interrupted") else order["grace"])
    log.drain()
    log.close()
    # What was left by a command that was ended from here is nothing to blame it for.
    left = [] if {"interrupted", "timed_out", "error"} & set(ending) else below.leftovers
    ending |= {"leftovers": left, "survivors": below.survivors, "log_cut": log.cut, "log_error": log.error}
    if below.killed or (below.returncode or 0) < 0:
        # Who ends by itself puts its segments away, and what nobody has open just now may be that of a run beside it.
        _clear_shared_memory(shared_before)
    _finish(order, {"returncode": below.returncode, **ending})
    os._exit(0)


def _finish(order: dict[str, Any], ending: dict[str, Any]) -> None:
    for path in order["scratch"]:
        remove(path)
    try:
        print(json.dumps(ending), flush=True)
    except BrokenPipeError:
        # The caller was killed, and nobody else will clean up after it.
        for path in order["orphaned"]:
            remove(path)


def _first_line(source: int) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        data = os.read(source, CHUNK)
        if not data:
            sys.exit(0)
        line += data
    return line


def _start(order: dict[str, Any]) -> subprocess.Popen[bytes]:
    def before_exec() -> None:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)

    return subprocess.Popen(
        order["argv"],
        cwd=order["cwd"],
        env=order["env"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=before_exec,
    )


def _wait(below: _Below, log: _Log, order: dict[str, Any], start: float, guard_lives: int) -> dict[str, Any]:
    """Wait for the command's own end, its limit, or the caller's end; never for whoever else holds its output."""
    limit = order["limit"]
    deadline = None if limit is None else start + limit
    ending: dict[str, Any] = {}
    with selectors.DefaultSelector() as selector:
        for source in (log.source, sys.stdin.fileno(), guard_lives, _wakes_for_children()):
            os.set_blocking(source, False)
            selector.register(source, selectors.EVENT_READ)
        while below.reap() and below.returncode is None:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                if ending or not order["last_signal"]:
                    return {"timed_out": True}
                # The command may say where it hangs before it is ended.
                ending = {"timed_out": True}
                below.signal(order["last_signal"])
                deadline = time.monotonic() + order["last_seconds"]
                continue
            for key, _ in selector.select(left):
                if key.fd == log.source:
                    if not log.read():
                        selector.unregister(log.source)
                elif not _take(key.fd):
                    return {"error": KILLED} if key.fd == guard_lives else {"interrupted": True}
    return ending


def _wakes_for_children() -> int:
    """Return a descriptor that can be read whenever a child has ended (pidfd_open is younger than AlmaLinux 8)."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return reading


def _take(source: int) -> bytes | None:
    try:
        return os.read(source, CHUNK)
    except BlockingIOError:
        return b"-"


class _Below:
    """All processes below this one. Whatever ends is reaped at once: tests may wait for a grandchild to be gone."""

    def __init__(self) -> None:
        self.command: int | None = None
        self.returncode: int | None = None
        self.killed = False
        self.leftovers: list[str] = []
        self.survivors: list[str] = []

    def reap(self) -> bool:
        """Reap what has ended; returns False once nothing is left, which looking into /proc can't tell for certain."""
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return True
                if pid == self.command:
                    self.returncode = os.waitstatus_to_exitcode(status)
        except ChildProcessError:
            return False

    def signal(self, number: int) -> None:
        assert self.command is not None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(self.command, number)

    def end(self, *, grace: float = 0.0) -> None:
        """End and reap everything, the command first; the rest may take ``grace`` seconds to end by itself."""
        if self.reap() and self.command is not None and self.returncode is None:
            self.killed = True
            self.signal(signal.SIGKILL)
        names: dict[int, str] = {}
        start = time.monotonic()
        while self.reap():
            age = time.monotonic() - start
            if age > grace + CLEANUP_SECONDS:
                self.survivors = sorted(name for _, name, _ in _running())
                break
            if age >= grace:
                names |= _kill_all()
            time.sleep(0.005)
        self.killed |= bool(names)
        self.leftovers = sorted(name for pid, name in names.items() if pid != self.command)


def _kill_all() -> dict[int, str]:
    """Kill everything below this process; returns the names of what was found, by process id."""
    found = list(_running())
    # The kernel kills a whole group at once, so that nothing forks its way out of it. A command starts in a session of
    # its own, so all groups below this process are its.
    for group in {group for _, _, group in found}:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    return {pid: name for pid, name, _ in found}


def _running() -> Iterator[tuple[int, str, int]]:
    """Yield the id, name and group of every living process below this one."""
    children: dict[int, list[int]] = {}
    about: dict[int, tuple[str, str, int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{entry}/stat", "rb") as stream:
                before, _, after = stream.read().decode(errors="replace").rpartition(")")
                state, parent, pgrp = after.split()[:3]
                children.setdefault(int(parent), []).append(int(entry))
                about[int(entry)] = (before.partition("(")[2], state, int(pgrp))
    waiting = children.get(os.getpid(), [])
    while waiting:
        pid = waiting.pop()
        waiting += children.get(pid, [])
        name, state, group = about[pid]
        if state not in "ZX":
            yield pid, name, group


class _Log:
    """The console, byte by byte as it came, up to a size; beyond it the first and the last half are kept."""

    def __init__(self, size: int) -> None:
        self.half = size // 2
        self.handle = -1
        self.head = 0
        self.tail = bytearray()
        self.cut = 0
        self.source = -1
        self.error = ""

    def open(self, path: str | None) -> None:
        if path:
            self.handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)

    def read(self) -> bool:
        """Take what is there to read; returns False at the end of the output."""
        try:
            data = os.read(self.source, CHUNK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._write(data[: self.half - self.head])
        self.tail += data[self.half - self.head :]
        self.head = min(self.half, self.head + len(data))
        if len(self.tail) > 2 * self.half:
            self._shorten()
        return bool(data)

    def drain(self) -> None:
        """Take what was written before the writers ended."""
        if self.source >= 0:
            with selectors.DefaultSelector() as selector:
                selector.register(self.source, selectors.EVENT_READ)
                while selector.select(0) and self.read():
                    pass

    def close(self) -> None:
        self._shorten()
        if self.cut:
            self._write(b"\n[... %d bytes left out here ...]\n" % self.cut)
        self._write(bytes(self.tail))

    def _shorten(self) -> None:
        surplus = max(0, len(self.tail) - self.half)
        self.cut += surplus
        del self.tail[:surplus]

    def _write(self, data: bytes) -> None:
        try:
            while data and self.handle >= 0:
                data = data[os.write(self.handle, data) :]
        except OSError as error:
            # The disk is full, say: the command goes on all the same.
            self.error = error.strerror or type(error).__name__
            self.handle = -1


def remove(path: str) -> None:
    """Remove a file, or a folder and all below it, even where a test took the permission away."""

    def permit(_function: object, name: str, _error: object) -> None:
        for place in (Path(name).parent, Path(name)):
            with contextlib.suppress(OSError):
                if not place.is_symlink():
                    place.chmod(0o700)

    with contextlib.suppress(OSError):
        os.unlink(path)
    for _ in range(10):
        if not os.path.lexists(path):
            break
        shutil.rmtree(path, onerror=permit)


def _shared_memory() -> set[str]:
    with contextlib.suppress(OSError):
        return {name for name in os.listdir("/dev/shm") if SHARED_MEMORY.match(name)}
    return set()


def _clear_shared_memory(before: set[str]) -> None:
    """Remove the shared memory that came since ``before`` and that no living process has or made."""
    new = _shared_memory() - before
    if not new:
        return
    # By inode: glibc maps a semaphore under a name that is gone before the one that is left exists.
    used = set()
    for entry in filter(str.isdigit, os.listdir("/proc")):
        # A run beside this one may own the new segment.
        with contextlib.suppress(OSError), open(f"/proc/{entry}/maps", errors="replace") as stream:
            used |= {int(line.split()[4]) for line in stream if "/dev/shm/" in line}
        with contextlib.suppress(OSError):
            for number in os.listdir(f"/proc/{entry}/fd"):
                with contextlib.suppress(OSError):
                    place = Path(f"/proc/{entry}/fd/{number}")
                    if str(place.readlink()).startswith("/dev/shm/"):
                        used.add(place.stat().st_ino)
    for name in new:
        match = SHARED_MEMORY.match(name)
        if match and match["pid"] and Path(f"/proc/{match['pid']}").exists():
            continue
        with contextlib.suppress(OSError):
            path = f"/dev/shm/{name}"
            about = os.lstat(path)
            if about.st_uid == os.getuid() and about.st_ino not in used:
                os.unlink(path)


if __name__ == "__main__":
    main()
