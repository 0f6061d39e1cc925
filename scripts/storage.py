"""Files that are whole or not there at all, locks that die with their holder, and where caches lie."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
from filelock import FileLock, Timeout

from .errors import Blocked

PROJECT = "torch-npu-matrix"
NEW = ".new"


def cache_root() -> Path:
    """Return the cache that all checkouts of this user share (XDG base directory specification).

    Raises Blocked(``cache``) if nothing can be kept there.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        root = (base if base.is_absolute() else home() / ".cache") / PROJECT
        root.mkdir(parents=True, exist_ok=True)
        if not os.access(root, os.W_OK | os.X_OK):
            raise PermissionError(f"{root} can't be written")
    except OSError as error:
        raise Blocked("cache", f"there is no cache: {error}", "Set XDG_CACHE_HOME to a folder of your own.") from None
    return root


def home() -> Path:
    """Return the user's home folder; where there is none, as in some containers, one that nobody can make."""
    try:
        return Path.home()
    except RuntimeError:
        return Path("/dev/null")


def located(name: str, base: Path) -> Path:
    """Return the path that a batch names: relative to ``base``, or below the home folder (``~/``)."""
    return home() / name[2:] if name.startswith("~/") else base / name


def digest(value: object) -> str:
    """Return the SHA-256 of a value as JSON, which names what was found out about it."""
    return hashlib.sha256(msgspec.json.encode(value)).hexdigest()


def write(path: Path, data: bytes) -> None:
    """Write ``data`` so that a reader, or a SIGKILL, sees the old file or the new one and nothing between."""
    path.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{path.name[:100]}."
    _sweep(path.parent, prefix)
    handle, temporary = _begin(path.parent, prefix)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
            # mkstemp's 0600 would hide reports from the colleagues they are for.
            temporary.chmod(0o644)
            temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def lock(path: Path, *, wait: float = -1) -> Iterator[None]:
    """Hold the lock at ``path``; ``wait`` is in seconds, negative for as long as it takes.

    Raises Blocked(``busy``) when somebody else keeps it longer than ``wait``.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    held = FileLock(path, timeout=wait, poll_interval=0.02)
    try:
        held.acquire()
    except Timeout:
        raise Blocked("busy", f"another run holds {path.name}", "Wait for it to end, then run this again.") from None
    try:
        yield
    finally:
        held.release()


@contextlib.contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield a folder that becomes ``target`` when the block succeeds and vanishes when it doesn't.

    The caller holds a lock for ``target``.
    """
    with scratch_folder(target.parent, f".{target.name}.new-") as building:
        yield building
        remove(target)
        # mkdtemp's 0700 would hide archived reports from the colleagues they are for.
        building.chmod(0o755)
        building.rename(target)


@contextlib.contextmanager
def scratch_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """Yield a new folder below ``parent`` that is gone afterwards.

    The caller holds a lock for ``prefix``, so whatever has that prefix before was left by a run that was killed.
    """
    parent.mkdir(parents=True, exist_ok=True)
    for left_behind in parent.glob(f"{prefix}*"):
        remove(left_behind)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True) as name:
        yield Path(name)


def remove(path: Path) -> None:
    """Remove a folder and all below it, where there is one."""
    shutil.rmtree(path, ignore_errors=True)


# Helpers


def _begin(folder: Path, prefix: str) -> tuple[int, Path]:
    """Return a new file, open and locked: the lock says that its writer lives."""
    while True:
        handle, name = tempfile.mkstemp(prefix=prefix, suffix=NEW, dir=folder)
        fcntl.flock(handle, fcntl.LOCK_EX)
        if os.fstat(handle).st_nlink:
            return handle, Path(name)
        # One that sweeps was quicker than the lock.
        os.close(handle)


def _sweep(folder: Path, prefix: str) -> None:
    """Remove what writers left that were killed while they wrote."""
    with os.scandir(folder) as entries:
        left = [Path(entry.path) for entry in entries if entry.name.startswith(prefix) and entry.name.endswith(NEW)]
    for path in left:
        with contextlib.suppress(OSError), path.open("rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
