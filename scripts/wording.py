"""The words of the reports: one file per language under text/, looked up by dotted keys."""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path
from typing import Any, Protocol

FOLDER = Path(__file__).parent / "text"
LANGUAGES = ("en", "zh")


class Say(Protocol):
    """Looks up a text by its key and fills in its values; raises KeyError for a key or value that isn't there."""

    def __call__(self, key: str, /, **values: object) -> str:
        """Return the text."""


def say_in(language: str) -> Say:
    """Return the texts of ``language``."""
    texts = load(language)

    def say(key: str, /, **values: object) -> str:
        return texts[key].format(**values)

    return say


@functools.cache
def load(language: str) -> dict[str, str]:
    """Return all texts of ``language`` by dotted key."""
    return dict(_flatten(tomllib.loads((FOLDER / f"{language}.toml").read_text())))


# Helpers


def _flatten(table: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for name, value in table.items():
        found += _flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else [(f"{prefix}{name}", value)]
    return found
