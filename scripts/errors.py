"""The kinds of failure, each with what went wrong and what to do about it."""

from __future__ import annotations

import re

URL_USER = re.compile(r"(?<=://)[^/\s]*@")
URL_QUERY = re.compile(r"(\w://[^\s?]+)\?[^\s]*")


class MatrixError(Exception):
    """Base of every failure that is told to a user in words, never as a traceback."""


class ConfigError(MatrixError):
    """A batch (matrix.toml) or a command line that can't be used; ``problems`` are whole lines, one each."""

    def __init__(self, *problems: str) -> None:
        self.problems = tuple(map(without_secrets, problems))
        super().__init__("\n".join(self.problems))


class Blocked(MatrixError):  # noqa: N818 (design.md's word)
    """A pair that could not be tried.

    ``code`` is one word for scripts (it never changes once released), ``cause`` says what was expected and found,
    ``remedy`` says what to do.
    """

    def __init__(self, code: str, cause: str, remedy: str) -> None:
        cause, remedy = without_secrets(cause), without_secrets(remedy)
        super().__init__(f"{cause} ({code}). {remedy}")
        self.code = code
        self.cause = cause
        self.remedy = remedy


class Interrupted(KeyboardInterrupt):
    """SIGTERM or Ctrl-C: what was learnt so far is kept, then the session ends."""

    def __init__(self, signal_name: str) -> None:
        super().__init__(signal_name)
        self.signal_name = signal_name


def without_secrets(text: str) -> str:
    """Return ``text`` with the user, password and query taken out of every URL in it."""
    return URL_QUERY.sub(r"\1", URL_USER.sub("", text))
