"""Patches: applied to the letter or refused with the cause, and proven to restore tests and nothing else."""

from __future__ import annotations

import difflib
import os
import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scripts import matrix, patching
from scripts.errors import Blocked
from scripts.upstream import Tree, blob_id

from .conftest import ROOT

FILE = "test/a_test.py"
NAME = f"patches/v2.10.0/{FILE}.patch"
BEFORE = b"""\
import unittest

from common import (
    IS_ARM64,
    IS_MACOS,
)


# not supported here

INVALID = IS_MACOS or IS_ARM64

if not INVALID:

    class T(unittest.TestCase):
        def test_a(self):
            self.assertEqual(2, 1 + 1)
"""
AFTER = BEFORE.replace(b"    IS_ARM64,\n", b"").replace(b" or IS_ARM64", b"")
BATCH = """
batch = "b"
title = { en = "b", zh = "b" }
pair = [{ torch = "2.10.0", torch-npu = "2.10.0", python = "3.11" }]
upstream = { repository = ["trees"] }
test-file = [{ path = "test/a_test.py", limit = 60, expected = { "2.10.0" = 1 } }]
patch = [{ file = "test/a_test.py", pairs = ["2.10.0"], reason = { en = "r", zh = "r" } }]
api = []
"""


def lines_of(data: bytes) -> list[bytes]:
    """Return lines as git has them: only a newline ends one."""
    return re.findall(rb"[^\n]*\n|[^\n]+", data)


def patch_of(before: bytes = BEFORE, after: bytes = AFTER, context: int = 3, index: bool = True) -> bytes:
    """Return a patch as git makes it, by hand."""
    names = f"a/{FILE}".encode(), f"b/{FILE}".encode()
    diff = difflib.diff_bytes(difflib.unified_diff, lines_of(before), lines_of(after), *names, n=context)
    body = b"".join(line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n" for line in diff)
    ids = f"index {blob_id(before)}..{blob_id(after)} 100644\n".encode() if index else b""
    return b"diff --git %b %b\n%b%b" % (*names, ids, body)


def apply(patch: bytes, before: bytes = BEFORE) -> bytes:
    return patching.apply(before, patch, file=FILE, name=NAME)[0]


def refusal(patch: bytes, before: bytes = BEFORE) -> Blocked:
    """Return the refusal of a patch; it names the patch and what to do, in one line each."""
    with pytest.raises(Blocked) as caught:
        apply(patch, before)
    assert caught.value.cause.startswith(f"{NAME} ")
    assert caught.value.cause.isprintable()
    assert caught.value.remedy == patching.REMEDIES[caught.value.code]
    return caught.value


def git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    environment = os.environ | {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    return subprocess.run(["git", *arguments], cwd=folder, env=environment, capture_output=True, check=False)


# Applying


@pytest.mark.parametrize("version", ["2.10.0", "2.11.0", "2.12.0"])
def test_the_shipped_patches_lift_the_sample_s_guard(version: str) -> None:
    batch = matrix.load(ROOT / "matrix.toml")
    [(file, path)] = batch.patches(batch.pair(version)).items()
    guarded, free = (ROOT / "tests/sample" / layer / file for layer in ("v2.10.0", "v2.6.0"))

    after, record = patching.apply(guarded.read_bytes(), path.read_bytes(), file=file, name=path.name)

    assert after == free.read_bytes() != guarded.read_bytes()
    parsed = patching.parse(path.read_bytes(), file, path.name)
    assert parsed.before == "8818b1788c62cef580525aeae5330441fe8ad01a"
    assert parsed.after == "7441eb547e9c9848af0a70a46ceef13afdd27ac1"
    assert record.made_for == parsed.before
    assert not record.fits


LONG = b"".join(b"# %d\n" % number for number in range(40))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (BEFORE, AFTER),
        (LONG + BEFORE + LONG, LONG.replace(b"# 20\n", b"") + AFTER + LONG.replace(b"# 9\n", b"# 9\n# nine\n")),
        (BEFORE.replace(b"\n", b"\r\n"), AFTER.replace(b"\n", b"\r\n")),
        (BEFORE.replace(b"\n\n", b"\r\n\n"), AFTER.replace(b"\n\n", b"\r\n\n")),
        (BEFORE.rstrip(), AFTER.rstrip()),
        (BEFORE.rstrip(), AFTER),
        (BEFORE, AFTER.rstrip()),
        (b"# the only line", b"# another"),
        (b"# a\n# b\n# b\n", b"# a\n# b\n"),
        *(
            (BEFORE.replace(b"# not", b"# \f not" + odd), AFTER.replace(b"# not", b"# \f not" + odd))
            for odd in (b"\x0b", b"\x1c", b"\r#", "\x85".encode(), "\u2028".encode())
        ),
    ],
)
def test_what_git_diff_makes_gives_the_very_post_image(tmp_path: Path, before: bytes, after: bytes) -> None:
    for side, data in (("a", before), ("b", after)):
        (tmp_path / side / "test").mkdir(parents=True)
        (tmp_path / side / FILE).write_bytes(data)
    for context in ("1", "3", "99"):
        made = git(
            tmp_path, "diff", "--no-index", "--no-prefix", "--full-index", f"-U{context}", f"a/{FILE}", f"b/{FILE}"
        )
        got, record = patching.apply(before, made.stdout, file=FILE, name=NAME)
        assert got == after
        assert (record.made_for, record.before, record.after) == (blob_id(before), blob_id(before), blob_id(after))
        assert record.fits
        assert not record.already_applied


def test_a_tree_inside_another_repository_is_really_patched(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    tree = tmp_path / "cache" / "tree"
    for path, data in ((tree / FILE, BEFORE), (tmp_path / NAME, patch_of()), (tmp_path / "m.toml", BATCH.encode())):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    applied = git(tree, "apply", str(tmp_path / NAME))
    assert (applied.returncode, (tree / FILE).read_bytes()) == (0, BEFORE)  # the trap

    batch = matrix.load(tmp_path / "m.toml")
    blobs = {FILE: blob_id(BEFORE)}
    found = patching.prepare(
        batch, batch.pairs[0], Tree(path=tree, source="folder", tag="v2.10.0", commit=None, blobs=blobs)
    )
    found.write(tmp_path / "worktree")

    assert (tmp_path / "worktree" / FILE).read_bytes() == AFTER
    assert found.blob(FILE) == blob_id(AFTER) == found.patches[FILE].after
    assert found.patches[FILE].patch == NAME
    assert (tree / FILE).read_bytes() == BEFORE


def test_a_patch_that_vanished_is_named(tmp_path: Path) -> None:
    path = tmp_path / NAME
    path.parent.mkdir(parents=True)
    path.touch()
    (tmp_path / "m.toml").write_text(BATCH)
    batch = matrix.load(tmp_path / "m.toml")
    path.unlink()
    tree = Tree(path=tmp_path, source="folder", tag="v2.10.0", commit=None, blobs={})
    with pytest.raises(Blocked, match=f"^{NAME} can't be read: No such file or directory .patch-missing.") as caught:
        patching.prepare(batch, batch.pairs[0], tree)
    assert caught.value.code == "patch-missing"


def test_mail_around_a_patch_is_no_part_of_it() -> None:
    mail = b"From: a\nSubject: [PATCH] rename nothing, delete nothing\n\nold mode: talk\n---\n a_test.py | 2 +-\n\n"
    quote = b"> ---\n--- no header\nnor this\n+++ or that\n"
    assert apply(mail + quote + patch_of() + b"-- \n2.39.5\n\n") == AFTER
    assert apply(patch_of() + b"\n\n") == AFTER


def test_an_empty_context_line_may_have_lost_its_space() -> None:
    assert apply(patch_of().replace(b"\n \n", b"\n\n")) == AFTER


def test_a_patch_without_an_index_line_says_less() -> None:
    after, record = patching.apply(BEFORE, patch_of(index=False), file=FILE, name=NAME)
    assert after == AFTER
    assert record.made_for is None
    assert not record.fits


# Already applied


@pytest.mark.parametrize("index", [True, False])
def test_an_applied_patch_counts_and_is_not_reversed(index: bool) -> None:
    after, record = patching.apply(AFTER, patch_of(index=index), file=FILE, name=NAME)
    assert after == AFTER
    assert record.already_applied
    assert (record.before, record.after) == (blob_id(BEFORE), blob_id(AFTER))


def test_a_patch_that_would_fit_twice_is_applied_once() -> None:
    before, after = b"# a\n# b\n# b\n# b\n", b"# a\n# b\n# b\n"
    patch = patch_of(before, after, context=1)
    assert apply(patch, before) == after
    assert apply(patch, after) == after
    assert apply(patch_of(before, after, context=1, index=False), before) == after


@pytest.mark.parametrize(
    ("there", "why"),
    [
        (b"# 1x", "hunk 1 is in it already; another is not"),
        (b"# 9x", "hunk 2 is in it already; another is not"),
        (b"# 1x # 9y", "hunk 1 is in it already; hunk 2: line 10 should be '# 9', it is '# 9y'"),
    ],
)
def test_half_of_a_patch_is_no_patch(there: bytes, why: str) -> None:
    def numbers(changes: bytes) -> bytes:
        lines = [b"# %d" % number for number in range(12)]
        for change in re.findall(rb"# \d+\D", changes):
            lines[int(change[2:-1])] = change
        return b"\n".join([*lines, b""])

    found = refusal(patch_of(numbers(b""), numbers(b"# 1x # 9x"), context=1), numbers(there))
    assert found.code == "patch-stale"
    assert f"does not fit {FILE}: {why}" in found.cause


def test_lines_that_are_gone_are_no_proof_of_a_patch() -> None:
    found = refusal(patch_of(b"# a\n# b\n", b"# a\n", context=0), b"# other\n# lines\n")
    assert found.code == "patch-stale"
    assert "hunk 1: line 2 should be '# b', it is '# lines'" in found.cause


# Refused


def test_a_stale_hunk_refuses_the_whole_patch() -> None:
    found = refusal(
        patch_of(context=1), BEFORE.replace(b"if not INVALID", b"if  not INVALID").replace(b"\n\nif", b"\nif")
    )
    assert found.code == "patch-stale"
    assert "hunk 2: line 12 should be '', it is 'if  not INVALID:'" in found.cause


@pytest.mark.parametrize(
    ("before", "why"),
    [
        (b"# a line more\n" + BEFORE, "hunk 1: line 1 should be 'import unittest', it is '# a line more'"),
        (
            BEFORE.replace(b"import unittest", b"import  unittest"),
            "should be 'import unittest', it is 'import  unittest'",
        ),
        (
            BEFORE.replace(b"IS_MACOS,", b"IS_MACOS, "),
            "hunk 1: line 5 should be '    IS_MACOS,', it is '    IS_MACOS, '",
        ),
        (
            BEFORE.replace(b"# not", b"#\fnot"),
            r"line 9 should be '# not supported here', it is '#\x0cnot supported here'",
        ),
        (BEFORE[: BEFORE.index(b"if not")], "the file ends before line 14"),
        (b"", "hunk 1: the file ends before line 14"),
    ],
)
def test_nothing_is_fuzzy(before: bytes, why: str) -> None:
    found = refusal(patch_of(), before)
    assert found.code == "patch-stale"
    assert why in found.cause
    assert found.cause.endswith(f"expected blob {blob_id(BEFORE)}, found {blob_id(before)}")


CRLF = (b"\n", b"\r\n")


@pytest.mark.parametrize(
    ("patch", "before", "why"),
    [
        (patch_of().replace(*CRLF), BEFORE, "CRLF in the patch and LF in the file"),
        (patch_of(), BEFORE.replace(*CRLF), "LF in the patch and CRLF in the file"),
        (patch_of(), BEFORE.replace(b"IS_ARM64\n", b"IS_ARM64\r\n"), "LF in the patch and CRLF in the file"),
        (patch_of().replace(*CRLF), AFTER, "CRLF in the patch and LF in the file"),
        (patch_of(b"# a\n", b"# b\n"), b"# a", "LF in the patch and none in the file"),
    ],
)
def test_line_endings_that_differ_are_the_cause(patch: bytes, before: bytes, why: str) -> None:
    found = refusal(patch, before)
    assert found.code == "patch-endings"
    assert f"hunk 1: line endings differ, {why}" in found.cause


def test_a_patch_with_the_endings_of_its_file_applies() -> None:
    assert apply(patch_of().replace(*CRLF), BEFORE.replace(*CRLF)) == AFTER.replace(*CRLF)


ABC = b"# a\n# b\n# c\n"
HEAD = f"diff --git a/{FILE} b/{FILE}\n"
SIDES = f"--- a/{FILE}\n+++ b/{FILE}\n"
ONE = "@@ -1 +1 @@\n-# a\n+# b\n"


def renamed(old: str, new: str) -> str:
    return f"diff --git {old} {new}\n--- {old}\n+++ {new}\n{ONE}"


@pytest.mark.parametrize(
    ("patch", "code", "why"),
    [
        ("", "patch-empty", "is empty"),
        (" \n\n", "patch-empty", "is empty"),
        ("words\nand no patch\n", "patch-empty", f"has no change of {FILE} in it"),
        (SIDES, "patch-empty", f"has no hunk for {FILE}"),
        (SIDES + "@@ -1 +1 @@\n # a\n", "patch-empty", f"changes no line of {FILE}"),
        (renamed("a/test/b_test.py", "b/test/b_test.py"), "patch-path", "is for 'a/test/b_test.py b/test/b_test.py'"),
        (
            SIDES.replace("+++ b/test/a", "+++ b/test/b") + ONE,
            "patch-path",
            f"touches 'b/test/b_test.py', expected b/{FILE}",
        ),
        (SIDES.replace("a/", "").replace("b/", "") + ONE, "patch-path", f"touches '{FILE}', expected a/{FILE}"),
        (SIDES.replace("a/test", "/test") + ONE, "patch-path", f"names '/{FILE}', which leaves the tree"),
        (SIDES.replace("b/test", "b/../test") + ONE, "patch-path", f"names 'b/../{FILE}', which leaves the tree"),
        (HEAD + HEAD + SIDES + ONE, "patch-path", f"is for 'a/{FILE} b/{FILE}' too or instead, expected {FILE} alone"),
        (SIDES + ONE + renamed("a/b.py", "b/b.py"), "patch-path", "touches a second file in line 6"),
        (SIDES + ONE + SIDES + ONE, "patch-path", "touches a second file in line 6"),
        (SIDES + ONE + "-- \n2.39\n" + SIDES + ONE, "patch-path", "touches a second file in line 8"),
        (SIDES.replace(f"a/{FILE}", "/dev/null") + "@@ -0,0 +1 @@\n+# b\n", "patch-kind", f"adds or deletes {FILE}"),
        (SIDES.replace(f"b/{FILE}", "/dev/null") + "@@ -1 +0,0 @@\n-# a\n", "patch-kind", f"adds or deletes {FILE}"),
        (
            HEAD + "new file mode 100644\n",
            "patch-kind",
            f"says 'new file mode 100644': it may only edit lines of {FILE}",
        ),
        (HEAD, "patch-empty", f"has no change of {FILE} in it"),
        (HEAD + "deleted file mode 100644\n" + SIDES + ONE, "patch-kind", "says 'deleted file mode 100644'"),
        (HEAD + "old mode 100644\nnew mode 100755\n" + SIDES + ONE, "patch-kind", "says 'old mode 100644'"),
        (
            HEAD + f"similarity index 90%\nrename from b\nrename to {FILE}\n" + SIDES + ONE,
            "patch-kind",
            "says 'similarity",
        ),
        (HEAD + f"Binary files a/{FILE} and b/{FILE} differ\n\n", "patch-kind", "says 'Binary files"),
        (HEAD + "GIT binary patch\nliteral 0\nHcmV?d00001\n", "patch-kind", "says 'GIT binary patch'"),
        (SIDES + ONE.strip(), "patch-hunk", "is cut off: its last line has no end"),
        (
            SIDES + "@@ -1,2 +1 @@\n-# a\n+# b\n",
            "patch-hunk",
            "hunk 1 has 1 old and 1 new lines, its header says 2 and 1",
        ),
        (
            SIDES + "@@ -1 +1 @@\n-# a\n-# b\n+# c\n",
            "patch-hunk",
            "hunk 1 has 2 old and 1 new lines, its header says 1 and 1",
        ),
        (
            SIDES + ONE + "-- \n@@ -3 +3 @@\n-# c\n+# d\n",
            "patch-hunk",
            "has '@@ -3 +3 @@' in line 7, which belongs to no",
        ),
        (SIDES + ONE + "+# c\n", "patch-hunk", "has '+# c' in line 6, which belongs to no hunk; hunk 1 ends before it"),
        (SIDES + ONE + "# c\n" + ONE, "patch-hunk", "has '# c' in line 6, which belongs to no hunk"),
        (SIDES + "@@ -1 +1 @@\n-# a\nx\n", "patch-hunk", "hunk 1 has 1 old and 0 new lines"),
        (
            SIDES + "@@ -1,0 +2 @@\n+# b\n",
            "patch-hunk",
            "hunk 1 has no line of the file in it that says where it belongs",
        ),
        (SIDES + "@@ -0 +0 @@\n-# a\n+# b\n", "patch-hunk", "hunk 1 starts at line 0, expected line 1 or a later one"),
        (SIDES + ONE + ONE, "patch-hunk", "hunk 2 starts at line 1, expected line 2 or a later one"),
        (
            SIDES + "@@ -1,2 +1,2 @@\n # a\n-# b\n+# c\n" + "@@ -2 +2 @@\n-# b\n+# d\n",
            "patch-hunk",
            "hunk 2 starts at line 2, expected line 3",
        ),
        (SIDES + "@@ -3 +3 @@\n-# c\n+# d\n" + ONE, "patch-hunk", "hunk 2 starts at line 1, expected line 4"),
        (
            SIDES + "@@ -1 +2 @@\n-# a\n+# b\n",
            "patch-hunk",
            "hunk 1 goes to line 2, but those before it make that another",
        ),
        (SIDES + f"@@ -{'9' * 5000} +1 @@\n-# a\n+# b\n", "patch-hunk", "which is no hunk"),
        (
            SIDES + "@@ -2 +2 @@\n-# b\n+# a\n\\ No newline at end of file\n",
            "patch-hunk",
            f"ends {FILE} without a newline where it goes on",
        ),
        (
            SIDES + "@@ -4 +4 @@\n-# d\n+# e\n",
            "patch-stale",
            "hunk 1: the file ends before line 4; the patch names no blob, found ",
        ),
        (HEAD + f"index {blob_id(ABC)[:9]}..1234567\n{SIDES}{ONE}", "patch-result", "its index line promises 1234567"),
    ],
)
def test_a_patch_that_is_none_is_refused(patch: str, code: str, why: str) -> None:
    found = refusal(patch.encode(), ABC)
    assert found.code == code
    assert why in found.cause


def test_what_a_patch_says_cannot_break_a_line_or_a_terminal() -> None:
    found = refusal(HEAD.encode() + b"\x1b[2J\xff\r\x00\n" + SIDES.encode() + ONE.encode())
    assert r"says '\x1b[2J�\r\x00'" in found.cause
    assert len(refusal(f"{HEAD}{'x' * 100_000}\n{SIDES}".encode()).cause) <= patching.CAUSE_CHARACTERS


def test_a_refusal_says_all_that_a_patch_may_not() -> None:
    after = BEFORE.replace(b"assertEqual(2", b"assertEqual(3").replace(
        b"import unittest\n", b"import unittest\nimport os\n"
    )
    found = refusal(patch_of(BEFORE, after))
    assert found.code == "patch-changes-tests"
    assert found.cause == f"{NAME} adds the import of os; changes T.test_a"


@given(
    st.binary(max_size=60)
    | st.lists(st.sampled_from([*lines_of(patch_of()), b"@@ -1,2 +1,3 @@\n", b"--- ", b"+++ b/"])).map(b"".join),
    st.binary(max_size=60) | st.just(BEFORE),
)
@settings(max_examples=200, deadline=None)
def test_bytes_that_are_no_patch_are_blocked(patch: bytes, before: bytes) -> None:
    try:
        after = apply(patch, before)
    except Blocked as blocked:
        assert blocked.cause.isprintable()
    else:
        assert after == AFTER


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_a_damaged_patch_does_what_it_should_or_nothing(data: st.DataObject) -> None:
    patch = patch_of(context=data.draw(st.integers(0, 3)))
    start = data.draw(st.integers(0, len(patch) - 1))
    end = start + data.draw(st.integers(0, 30))
    damaged = patch[:start] + data.draw(st.binary(max_size=3) | st.just(b"\n")) + patch[end:]
    try:
        after = apply(damaged)
    except Blocked as blocked:
        assert blocked.remedy == patching.REMEDIES[blocked.code]
    else:
        assert after == AFTER


@given(
    st.lists(st.sampled_from("ABCDEFGH"), min_size=2, unique=True),
    st.lists(st.integers(0, 12), min_size=3, max_size=3),
    st.integers(1, 4),
    st.sampled_from([b"\n", b"\r\n"]),
    st.data(),
)
@settings(deadline=None)
def test_lifting_any_operands_gives_the_very_post_image(
    flags: list[str], gaps: list[int], context: int, ending: bytes, data: st.DataObject
) -> None:
    dropped = data.draw(st.lists(st.sampled_from(flags), min_size=1, max_size=len(flags) - 1, unique=True))

    def module(names: list[str]) -> bytes:
        imports = "from common import (\n" + "".join(f"    {name},\n" for name in names) + ")\n"
        parts = [
            "import unittest\n",
            imports,
            f"X = {' or '.join(names)}\n",
            "if not X:\n    class T(unittest.TestCase): pass\n",
        ]
        text = "".join(part + "# \u2028 \f\n" * gap for part, gap in zip(parts, [*gaps, 0], strict=True))
        return text.encode().replace(b"\n", ending)

    before, after = module(flags), module([flag for flag in flags if flag not in dropped])
    assert apply(patch_of(before, after, context), before) == after
    assert apply(patch_of(before, after, context, index=False), after) == after
