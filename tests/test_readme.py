"""README in its two languages: both say the same, and what they name is there."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from tests.conftest import ROOT

ENGLISH, CHINESE = "README.md", "README.zh.md"
BLOCK = re.compile(r"(?:<!-- ci: (\w+) -->\n)?^```\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#]+)\)")


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(name: str) -> list[tuple[str, list[str]]]:
    """Return each block's marker and its lines, without the comments: those are in the reader's language."""
    return [
        (marker, [re.sub(r"\s+# .*", "", line) for line in block.splitlines()])
        for marker, block in BLOCK.findall(text(name))
    ]


def prose(name: str) -> str:
    return BLOCK.sub("", text(name))


def shape(name: str) -> list[str]:
    """Return the document without its words: headings, items, pictures, and tables with their numbers of columns."""
    found = []
    for line in prose(name).splitlines():
        if line.startswith("|"):
            found.append(f"row of {line.count('|')}")
        elif match := re.match(r"#+ |- |!\[", line):
            found.append(match[0])
    return found


def test_both_have_the_same_commands() -> None:
    assert blocks(CHINESE) == blocks(ENGLISH)
    assert [marker for marker, _ in blocks(ENGLISH) if marker] == ["main", "tests"]


def test_both_have_the_same_headings_items_and_tables() -> None:
    assert shape(CHINESE) == shape(ENGLISH)
    assert "## " in shape(ENGLISH)


def test_both_name_the_same_things_in_each_section() -> None:
    def named(name: str) -> list[set[str]]:
        return [
            set(re.findall(r"`([^`]+)`", section)) for section in re.split(r"^#+ ", prose(name), flags=re.MULTILINE)
        ]

    assert named(CHINESE) == named(ENGLISH)


@pytest.mark.parametrize("name", [ENGLISH, CHINESE])
def test_every_link_leads_somewhere(name: str) -> None:
    links = [link for link in LINK.findall(text(name)) if "://" not in link]

    assert links
    assert not [link for link in links if not (ROOT / link).exists()]


def test_every_session_they_name_is_there() -> None:
    words = re.findall(r"nox -s ((?:[a-z][\w.-]* ?)+)", text(ENGLISH) + text(CHINESE))
    named = {session for group in words for session in group.split()} - {"verify-"}
    assert {"tests", "report", "verify-2.10.0"} <= named

    listed = subprocess.run(
        [sys.executable, "-m", "nox", "-l", "--json", "-s", *named], cwd=ROOT, capture_output=True, text=True
    )

    assert listed.returncode == 0, listed.stderr
    assert {entry["session"] for entry in json.loads(listed.stdout)} == named
