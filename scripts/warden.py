"""Runs one command so that nothing of it outlives the command, its limit, or whoever asked for it.

A process of its own (standard library only): it is the sub-reaper of all that the command starts, in whatever session
or process group, and it learns of its caller's end, by SIGKILL too, when its standard input closes. The first line of
its input is a JSON object (what to run; never an argument, which other users could read), its output is one
(process.Ending).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
CHUNK = 1 << 16
CLEANUP_SECONDS = 10.0
# What multiprocessing, torch and OpenMP leave in /dev/shm when they are killed.
SHARED_MEMORY = ("torch_", "psm_", "sem.mp-", "pym-", "__KMP_REGISTERED_LIB_")


def main() -> None:
    """Run the order that stands in the first line of standard input and print its ending."""
    order = json.loads(_first_line(sys.stdin.fileno()))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # A Ctrl-C reaches the whole foreground group; the caller decides what it means and closes our input.
        signal.signal(number, signal.SIG_IGN)
    shared_before = _shared_memory()
    start = time.monotonic()
    ending: dict[str, object] = {"returncode": None, "timed_out": False, "interrupted": False, "error": ""}
    log = _Log(order["log"], order["log_bytes"])
    try:
        child = _start(order, libc)
    except OSError as error:
        ending["error"] = f"{order['argv'][0]}: {error.strerror}"
    else:
        ending.update(_wait(child, log, start, order["limit"]))
        ending["returncode"] = child.returncode
    ending["seconds"] = time.monotonic() - start
    ending["leftovers"] = _end_descendants()
    log.drain()
    log.close()
    _clear_shared_memory(shared_before)
    for folder in order["scratch"]:
        shutil.rmtree(folder, ignore_errors=True)
    ending["log_cut"] = log.cut
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps(ending), flush=True)


def _first_line(source: int) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        data = os.read(source, CHUNK)
        if not data:
            sys.exit(1)
        line += data
    return line


def _start(order: dict[str, Any], libc: ctypes.CDLL) -> subprocess.Popen[bytes]:
    def before_exec() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
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


def _wait(child: subprocess.Popen[bytes], log: _Log, start: float, limit: float | None) -> dict[str, bool]:
    """Wait for the command's own end, its limit, or the caller's end; never for whoever else holds its output."""
    assert child.stdout is not None
    log.source = child.stdout.fileno()
    os.set_blocking(log.source, False)
    tick = 0.02
    with selectors.DefaultSelector() as selector:
        selector.register(log.source, selectors.EVENT_READ)
        selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
        # Linux before 5.3, which AlmaLinux 8 has, can't wait for a process this way: there the tick is short.
        with contextlib.suppress(OSError, AttributeError):
            selector.register(os.pidfd_open(child.pid), selectors.EVENT_READ)
            tick = 1.0
        while child.poll() is None:
            left = None if limit is None else start + limit - time.monotonic()
            if left is not None and left <= 0:
                child.kill()
                child.wait()
                return {"timed_out": True}
            for key, _ in selector.select(tick if left is None else min(tick, left)):
                if key.fd == log.source and not log.read():
                    selector.unregister(log.source)
                elif key.fd == sys.stdin.fileno() and not os.read(key.fd, CHUNK):
                    child.kill()
                    child.wait()
                    return {"interrupted": True}
    return {}


class _Log:
    """The console, byte by byte as it came, up to a size; beyond it the first and the last half are kept."""

    def __init__(self, path: str | None, size: int) -> None:
        self.stream = open(path, "wb") if path else None  # noqa: SIM115 (closed by close)
        self.half = size // 2
        self.head = 0
        self.tail = bytearray()
        self.cut = 0
        self.source = -1

    def read(self) -> bool:
        """Take what is there to read; returns False at the end of the output."""
        try:
            data = os.read(self.source, CHUNK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        room = self.half - self.head
        if self.stream and room > 0:
            self.stream.write(data[:room])
            self.stream.flush()
        self.head += min(room, len(data))
        self.tail += data[room:]
        if len(self.tail) > 2 * self.half:
            self.cut += len(self.tail) - self.half
            del self.tail[: -self.half]
        return bool(data)

    def drain(self) -> None:
        """Take what was written before the writers ended."""
        if self.source >= 0:
            os.set_blocking(self.source, False)
            while True:
                try:
                    if not select_once(self.source) or not self.read():
                        return
                except OSError:
                    return

    def close(self) -> None:
        if self.stream:
            if len(self.tail) > self.half and self.cut:
                self.cut += len(self.tail) - self.half
                del self.tail[: -self.half]
            if self.cut:
                self.stream.write(b"\n[... %d bytes left out here ...]\n" % self.cut)
            self.stream.write(self.tail)
            self.stream.close()


def select_once(source: int) -> bool:
    """Return whether ``source`` has something to read now."""
    with selectors.DefaultSelector() as selector:
        selector.register(source, selectors.EVENT_READ)
        return bool(selector.select(0))


def _end_descendants() -> list[str]:
    """Kill and reap all that the command left, wherever it went; returns the names of what was still running."""
    names: dict[int, str] = {}
    deadline = time.monotonic() + CLEANUP_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        alive = _descendants()
        if not alive:
            break
        for pid, (name, state) in alive.items():
            if state != "Z":
                names.setdefault(pid, name)
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)
    return sorted(names.values())


def _descendants() -> dict[int, tuple[str, str]]:
    parents: dict[int, int] = {}
    about: dict[int, tuple[str, str]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{entry}/stat", "rb") as stream:
                before, _, after = stream.read().decode(errors="replace").rpartition(")")
                state, parent = after.split()[:2]
                parents[int(entry)] = int(parent)
                about[int(entry)] = (before.partition("(")[2], state)
    found: dict[int, tuple[str, str]] = {}
    new = {os.getpid()}
    while new:
        new = {pid for pid, parent in parents.items() if parent in new and pid not in found}
        found.update({pid: about[pid] for pid in new})
    return found


def _shared_memory() -> set[str]:
    with contextlib.suppress(OSError):
        return {name for name in os.listdir("/dev/shm") if name.startswith(SHARED_MEMORY)}
    return set()


def _clear_shared_memory(before: set[str]) -> None:
    """Remove the shared memory that the command created and that nobody uses any more."""
    new = _shared_memory() - before
    if not new:
        return
    used = set()
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            # A run beside this one may own the new segment: what any process has mapped stays.
            with contextlib.suppress(OSError), open(f"/proc/{entry}/maps", errors="replace") as stream:
                used |= {line.rpartition("/dev/shm/")[2].strip() for line in stream if "/dev/shm/" in line}
    for name in new - used:
        with contextlib.suppress(OSError):
            path = f"/dev/shm/{name}"
            if os.lstat(path).st_uid == os.getuid():
                os.unlink(path)


if __name__ == "__main__":
    main()
