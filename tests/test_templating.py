"""Templates that are compiled once: what is kept of them is never another template's, and never needed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import jinja2
import pytest

from scripts import storage, templating

FILLER = Path(__file__)


@pytest.fixture
def templates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(templating, "TEMPLATES", tmp_path / "templates")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "a.jinja").write_text("Hello {{ name }}.\n")
    return tmp_path / "templates"


def filled(*, autoescape: bool = False, finalize: Callable[[object], object] | None = None) -> str:
    """Fill in the template as a new process would."""
    return (
        templating.environment(FILLER, autoescape=autoescape, finalize=finalize)
        .get_template("a.jinja")
        .render(name="<b>")
    )


def kept() -> list[Path]:
    return sorted((storage.cache_root() / "templates").iterdir())


def test_a_template_is_compiled_once(templates: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = filled()
    monkeypatch.setattr(jinja2.Environment, "compile", lambda *_: pytest.fail("compiled again"))
    assert first == filled() == "Hello <b>.\n"


def test_what_is_kept_is_of_this_text_these_settings_and_this_code(
    templates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert filled() == "Hello <b>.\n"
    assert filled(autoescape=True) == "Hello &lt;b&gt;.\n"
    (templates / "a.jinja").write_text("Bye {{ name }}{{ 'x' }}.\n")
    assert filled() == "Bye <b>x.\n"
    assert len(kept()) == 2
    # A checkout that is brought up to date finds in the cache what older code compiled, with what that code did.
    monkeypatch.setattr(sys.modules[__name__], "FILLER", templates / "other.py")
    (templates / "other.py").write_text("")
    assert filled(finalize=lambda value: str(value).upper()) == "Bye <B>X.\n"
    assert len(kept()) == 3


def replace_by_folder(place: Path) -> None:
    place.unlink()
    place.mkdir()


DAMAGE: dict[str, Callable[[Path], object]] = {
    "empty": lambda place: place.write_bytes(b""),
    "cut short": lambda place: os.truncate(place, place.stat().st_size // 2),
    "its beginning": lambda place: os.truncate(place, 60),
    "something else": lambda place: place.write_bytes(b"j2" * 100),
    "another text": lambda place: place.write_bytes(place.read_bytes().replace(b"Hello", b"Jello")),
    "not readable": replace_by_folder,
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_what_is_kept_can_be_damaged(templates: Path, damage: Callable[[Path], object]) -> None:
    whole = filled()
    (place,) = kept()
    data = place.read_bytes()
    damage(place)
    assert filled() == whole
    assert place.is_dir() or place.read_bytes() == data


def test_without_a_cache_templates_are_filled_in_all_the_same(templates: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/cache")
    assert filled() == "Hello <b>.\n"
