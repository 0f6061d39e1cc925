"""Gives the templates of reports to those who fill them in, compiled once and kept for the next session."""

from __future__ import annotations

import contextlib
import hashlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jinja2

from . import storage
from .errors import Blocked

TEMPLATES = Path(__file__).parent / "templates"
DIGEST_BYTES = 32


def environment(filler: Path, *, autoescape: bool, finalize: Callable[[Any], Any] | None = None) -> jinja2.Environment:
    """Return what loads the templates; ``finalize`` is applied to whatever they show.

    ``filler`` is the module that fills them in: what its filters give may be compiled in.
    """
    code = [path.read_text(encoding="utf-8") for path in (Path(__file__), filler)]
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        bytecode_cache=_Compiled(storage.digest([jinja2.__version__, sys.version, autoescape, *code])),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=autoescape,  # noqa: S701 (Markdown has its own filters for that)
        finalize=finalize,
    )


# Helpers


class _Compiled(jinja2.BytecodeCache):
    """Templates that a session before compiled, which takes longer than to fill them in; can do without."""

    def __init__(self, made_with: str) -> None:
        self.made_with = made_with

    def load_bytecode(self, bucket: jinja2.bccache.Bucket) -> None:
        with contextlib.suppress(OSError, Blocked):
            data = self._place(bucket).read_bytes()
            digest, compiled = data[:DIGEST_BYTES], data[DIGEST_BYTES:]
            # jinja2 takes it for whole if its beginning is.
            if digest == hashlib.sha256(compiled).digest():
                bucket.bytecode_from_string(compiled)

    def dump_bytecode(self, bucket: jinja2.bccache.Bucket) -> None:
        compiled = bucket.bytecode_to_string()
        with contextlib.suppress(OSError, Blocked):
            storage.write(self._place(bucket), hashlib.sha256(compiled).digest() + compiled)

    def _place(self, bucket: jinja2.bccache.Bucket) -> Path:
        return storage.cache_root() / "templates" / storage.digest([self.made_with, bucket.key])[:32]
