"""Gives the templates of reports to those who fill them in, compiled once and kept for the next session."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jinja2

from . import storage
from .errors import Blocked

TEMPLATES = Path(__file__).parent / "templates"


def environment(*, autoescape: bool, finalize: Callable[[Any], Any] | None = None) -> jinja2.Environment:
    """Return what loads the templates; ``finalize`` is applied to whatever they show."""
    made_with = [jinja2.__version__, sys.version, autoescape, finalize.__qualname__ if finalize else ""]
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        bytecode_cache=_Compiled(storage.digest(made_with)),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=autoescape,  # noqa: S701 (Markdown has its own filters for that)
        finalize=finalize,
        optimized=False,  # what is kept has nothing in it that a filter of today gave
    )


# Helpers


class _Compiled(jinja2.BytecodeCache):
    """Templates that a session before compiled, which takes longer than to fill them in; can do without."""

    def __init__(self, made_with: str) -> None:
        self.made_with = made_with

    def load_bytecode(self, bucket: jinja2.bccache.Bucket) -> None:
        with contextlib.suppress(OSError, Blocked):
            bucket.bytecode_from_string(self._place(bucket).read_bytes())

    def dump_bytecode(self, bucket: jinja2.bccache.Bucket) -> None:
        with contextlib.suppress(OSError, Blocked):
            storage.write(self._place(bucket), bucket.bytecode_to_string())

    def _place(self, bucket: jinja2.bccache.Bucket) -> Path:
        return storage.cache_root() / "templates" / storage.digest([self.made_with, bucket.key])[:32]
