"""What all tests share: caches and locks of their own, so that a developer's are neither used nor touched."""

from __future__ import annotations

import signal
from pathlib import Path

import hypothesis
import pytest

# As at a terminal: a suite started in the background has Ctrl-C and hang-ups ignored, and would hand that on to what it
# tests.
for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
# How long one example takes says nothing on a machine that others use as well.
hypothesis.settings.register_profile("shared machine", deadline=None)
hypothesis.settings.load_profile("shared machine")
ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def own_caches(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test an empty cache and its own locks."""
    folder = tmp_path_factory.mktemp("own")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.setenv("TNM_SLOTS", str(folder / "slots"))
    (folder / "slots").mkdir()
