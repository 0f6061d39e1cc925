"""Says what an interpreter is and whether the tests can work on it, as one JSON object."""

from __future__ import annotations

import json
import multiprocessing
import platform
import sys


def queue_size() -> str:
    """Return why ``multiprocessing.Queue().qsize()`` fails, or an empty string.

    Interpreters that were cross-compiled may take ``sem_getvalue`` for broken; upstream's timers need it
    (python-build-standalone issue 977, conda-forge/python-feedstock issue 804).
    """
    try:
        multiprocessing.Queue().qsize()
    except NotImplementedError as error:
        return f"NotImplementedError {error}".strip()
    except OSError as error:
        # No semaphores at all: /dev/shm is missing or full.
        return f"{type(error).__name__}: {error}"
    return ""


def main() -> None:
    """Print the facts."""
    libc, version = platform.libc_ver()
    facts = {
        "version": platform.python_version(),
        "implementation": platform.python_implementation(),
        "machine": platform.machine(),
        "libc": f"{libc} {version}".strip(),
        "base_prefix": sys.base_prefix,
        "queue_size_error": queue_size(),
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
