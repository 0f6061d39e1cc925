"""matrix.toml: what is in the shipped one, and that every mistake in another is told in one line."""

from __future__ import annotations

import json
import random
import tomllib
from collections.abc import Callable
from datetime import date, datetime, time
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scripts import matrix
from scripts.errors import ConfigError

from .conftest import ROOT

SHIPPED = ROOT / "matrix.toml"
BATCH = """
batch = "small"
title = { en = "A small batch", zh = "小批次" }
test-requirements = ["numpy"]
pair = [
    { torch = "2.10.0", torch-npu = "2.10.0", python = "3.11" },
    { torch = "2.9.0", torch-npu = "2.9.0.post2", python = "3.11", cann = "8.3.RC1" },
]
[upstream]
repository = ["trees/v{torch}", "https://example.org/pytorch.git"]
[[test-file]]
path = "t/a.py"
limit = 60
expected = { "2.9.0" = 1, "2.10.0" = 2 }
[[api]]
name = "torch.f"
kind = "function"
does = { en = "Works.", zh = "工作。" }
# What follows may be missing.
[[api]]
name = "torch.C"
kind = "class"
does = { en = "Holds.", zh = "保存。" }
require = ["t/a.py::T.test_a"]
require-behaviours = ["normal", "exception=OSError"]
[[patch]]
file = "t/a.py"
pairs = ["2.10.0"]
reason = { en = "A guard hides it.", zh = "被屏蔽。" }
[[accepted]]
file = "t/a.py"
case = "T.test_b"
reason = "Known."
expires = 2030-01-31
pairs = ["2.9.0"]
[cann]
set-env = "/usr/local/Ascend/set_env.sh"
[nightly]
keep = 7
"""
REQUIRED = BATCH.partition("# What follows")[0]


@pytest.fixture
def load(tmp_path: Path) -> Callable[[str | bytes], matrix.Batch]:
    """Load a batch with this text, beside which the patch of BATCH lies."""
    patch = tmp_path / "patches/v2.10.0/t/a.py.patch"
    patch.parent.mkdir(parents=True)
    patch.touch()

    def load(text: str | bytes) -> matrix.Batch:
        path = tmp_path / "matrix.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return matrix.load(path)

    return load


def problems(load: Callable[[], object]) -> list[str]:
    """Return the lines of the ConfigError that ``load`` raises."""
    with pytest.raises(ConfigError) as caught:
        load()
    assert str(caught.value).splitlines() == list(caught.value.problems)
    return list(caught.value.problems)


def swap(old: str, new: str, text: str = BATCH) -> str:
    """Return ``text`` with ``old``, which it has once, replaced by ``new``."""
    assert text.count(old) == 1
    return text.replace(old, new)


def test_the_shipped_batch() -> None:
    batch = matrix.load(SHIPPED)
    assert [pair.name for pair in batch.pairs] == [
        *("2.6.0", "2.7.1", "2.8.0", "2.9.0", "2.10.0", "2.11.0", "2.12.0", "2.13.0")
    ]
    assert [pair.torch_npu for pair in batch.pairs if pair.torch_npu != pair.torch] == ["2.7.1.post2", "2.8.0.post2"]
    assert all(pair.commit for pair in batch.pairs)
    patched = {pair.name: [path for path in batch.patches(pair).values() if path.is_file()] for pair in batch.pairs}
    assert [name for name, files in patched.items() if len(files) == 1] == ["2.10.0", "2.11.0", "2.12.0"]
    assert [file.timing_sensitive for file in batch.matrix.test_file] == [False, False, True]
    assert len(batch.matrix.api) == 6
    for text in (batch.matrix.title, *(api.does for api in batch.matrix.api)):
        assert text.en.isascii() and not text.zh.isascii()


@pytest.mark.parametrize("text", [BATCH, REQUIRED])
def test_pairs_are_ordered_as_versions_are(text: str, load: Callable[[str], matrix.Batch]) -> None:
    assert [pair.name for pair in load(text).pairs] == ["2.9.0", "2.10.0"]


KEYS_AND_TYPES = [
    ('batch = "small"', "", "batch: missing"),
    ('batch = "small"', "batch = 3", "batch: expected a string, found an integer"),
    ('batch = "small"', "batch = 1979-05-27", "batch: expected a string, found a date"),
    ('batch = "small"', 'Batch = "small"', "Batch: unknown key; did you mean 'batch'?"),
    ("[upstream]", "[upstream]\nxyz = 3", "upstream.xyz: unknown key; known are repository, strict, tag"),
    (
        'title = { en = "A small batch", zh = "小批次" }',
        'title = "A small batch"',
        "title: expected a table, found a string",
    ),
    (', zh = "小批次"', "", "title.zh: missing"),
    ('["numpy"]', '"numpy"', "test-requirements: expected an array, found a string"),
    ('["numpy"]', '["numpy", 3]', "test-requirements[2]: expected a string, found an integer"),
    ("pair = [", "pairs = [", "pairs: unknown key; did you mean 'pair'?"),
    ('torch-npu = "2.10.0"', 'torch_npu = "2.10.0"', "pair[2.10.0].torch_npu: unknown key; did you mean 'torch-npu'?"),
    ('torch = "2.10.0", ', "", "pair[1].torch: missing"),
    ('torch = "2.10.0"', "torch = 2.10", "pair[1].torch: expected a string, found a number"),
    ("[[test-file]]", "[test-file]", "test-file: expected an array of tables, found a table"),
    ("limit = 60", 'limit = "60"', "test-file[t/a.py].limit: expected a number, found a string"),
    ("limit = 60", "limit = true", "test-file[t/a.py].limit: expected a number, found a boolean"),
    (
        "limit = 60",
        "limit = 60\ntiming-sensitive = 1",
        "test-file[t/a.py].timing-sensitive: expected a boolean, found an integer",
    ),
    ('"2.9.0" = 1', '"2.9.0" = 1.5', "test-file[t/a.py].expected.2.9.0: expected an integer, found a number"),
    ('pairs = ["2.10.0"]', 'pair = "2.10.0"', "patch[t/a.py].pair: unknown key; did you mean 'pairs'?"),
    ('"function"', '"funktion"', "api[torch.f].kind: 'funktion' is none of its values; did you mean 'function'?"),
    ("[upstream]", "[upstream]\nstrikt = true", "upstream.strikt: unknown key; did you mean 'strict'?"),
    ("set-env", "set_env", "cann.set_env: unknown key; did you mean 'set-env'?"),
    ("2030-01-31", '"2030-01-31"', "accepted[t/a.py].expires: expected a date, found a string"),
    ("2030-01-31", "2030-01-31T12:00:00", "accepted[t/a.py].expires: expected a date, found a date or time"),
    ("keep = 7", "keep = 1.5", "nightly.keep: expected an integer, found a number"),
]
MEANING = [
    ('"small"', '"a/b"', "batch: 'a/b' can't name a folder; use letters, digits, dot, dash, underscore"),
    ('"small"', '"README.md"', "batch: 'README.md' can't name a folder; use letters, digits, dot, dash, underscore"),
    ("A small batch", " ", "title.en: ' ' is not one line of text"),
    (
        "A guard hides it.",
        r"A guard.\nIt hides.",
        r"patch[t/a.py].reason.en: 'A guard.\nIt hides.' is not one line of text",
    ),
    *(
        (
            '"numpy"',
            f'"numpy @ {url}"',
            f"test-requirements[1]: 'numpy @ {url}' names no wheel; "
            "name a package of an index, or a .whl by its URL or whole path",
        )
        for url in ("git+https://a/b.whl", "file:///numpy", "https://a/numpy.tar.gz#x=.whl", "./numpy.whl")
    ),
    (
        '"numpy"',
        '"numpy @ https://bob:s3cret@a/numpy.zip?token=s3cret"',
        "test-requirements[1]: 'numpy @ https://a/numpy.zip names no wheel; "
        "name a package of an index, or a .whl by its URL or whole path",
    ),
    ('"numpy"', '"numpy", "-r a.txt"', "test-requirements[2]: '-r a.txt' is not a requirement such as 'numpy<3'"),
    (
        '"trees/v{torch}"',
        '"trees/v{version}"',
        "upstream.repository[1]: 'trees/v{version}' has a placeholder that isn't known; use {torch} or {torch_npu}",
    ),
    (
        '"trees/v{torch}"',
        '"trees/v{torch:99}"',
        "upstream.repository[1]: 'trees/v{torch:99}' has a placeholder that isn't known; use {torch} or {torch_npu}",
    ),
    (
        "[upstream]",
        "[upstream]\ntag = 'v{torch'",
        "upstream.tag: 'v{torch' is not a template: expected '}' before end of string; a brace itself is written twice",
    ),
    (
        '["trees/v{torch}", "https://example.org/pytorch.git"]',
        "[]",
        "upstream.repository: empty; name a git URL or a folder template",
    ),
    (
        '"trees/v{torch}"',
        '"trees/v{torch!r}"',
        "upstream.repository[1]: 'trees/v{torch!r}' has a placeholder that isn't known; use {torch} or {torch_npu}",
    ),
    ("https://example.org/pytorch.git", "-x", "upstream.repository[2]: '-x' is nothing that git could be given"),
    (
        "https://example.org/pytorch.git",
        "",
        "upstream.repository[2]: '' is nothing that git could be given",
    ),
    ('"/usr/local/Ascend/set_env.sh"', "''", "cann.set-env: '' is not the path of a set_env.sh"),
    (
        'torch-npu = "2.10.0"',
        'torch-npu = "latest"',
        "pair[2.10.0].torch-npu: 'latest' is not a version such as '2.10.0' or '2.7.1.post2'",
    ),
    (
        'torch-npu = "2.10.0"',
        'torch-npu = "v2.10"',
        "pair[2.10.0].torch-npu: 'v2.10' is not how releases are named; did you mean '2.10.0'?",
    ),
    (
        'torch-npu = "2.10.0"',
        f'torch-npu = "{"9" * 5000}"',
        f"pair[2.10.0].torch-npu: '{'9' * 79}…{'9' * 19}' is not a version such as '2.10.0' or '2.7.1.post2'",
    ),
    (
        'cann = "8.3.RC1" },',
        'cann = "8.3.RC1" }, { torch = "2.9.0", torch-npu = "2.9.0.post2", python = "3.11", cann = "8.3.RC1" },',
        "pair[2.9.0]: stands twice; remove one",
    ),
    ('"8.3.RC1"', '"8"', "pair[2.9.0].cann: '8' is not a version such as '8.5.0' or '8.3.RC1'"),
    ('"3.11" },', '"3.8" },', "pair[2.10.0].python: '3.8' is not a Python version such as '3.11', from 3.9 on"),
    (
        '"3.11" },',
        '"3.11", commit = "449b176" },',
        "pair[2.10.0].commit: '449b176' is not a full commit id (40 hexadecimal digits)",
    ),
    (
        "[upstream]\nrepository",
        "[[test-file]]\npath = 't/a.py'\nlimit = 1\nexpected = { '2.9.0' = 1, '2.10.0' = 1 }\n[upstream]\nrepository",
        "test-file[t/a.py]: stands twice; a test file is listed once",
    ),
    ("limit = 60", "limit = nan", "test-file[t/a.py].limit: nan is not a number of seconds up to 86400"),
    ("limit = 60", "limit = 0", "test-file[t/a.py].limit: 0 is not a number of seconds up to 86400"),
    ("limit = 60", f"limit = {10**400}", "test-file[t/a.py].limit: out of range"),
    (
        '"2.9.0" = 1, ',
        "",
        "test-file[t/a.py].expected: says nothing of pair '2.9.0'; add the number of cases that must run",
    ),
    ('"2.9.0" = 1', '"2.9.0" = 0', "test-file[t/a.py].expected.2.9.0: 0 cases prove nothing; expect at least 1"),
    ('"2.9.0" = 1', f'"2.9.0" = {2**64}', f"test-file[t/a.py].expected.2.9.0: {2**64} cases are more than a file has"),
    (
        '"2.9.0" = 1',
        '"2.9.0" = 1, "2.9.1" = 1',
        "test-file[t/a.py].expected.2.9.1: no such pair; did you mean '2.9.0'?",
    ),
    ('["2.10.0"]', '["2.10"]', "patch[t/a.py].pairs: no pair '2.10'; did you mean '2.10.0'?"),
    (
        '["2.10.0"]',
        '["2.9.0"]',
        "patch[t/a.py].pairs: no file patches/v2.9.0/t/a.py.patch for '2.9.0' beside this TOML file",
    ),
    (
        '["2.10.0"]',
        '["2.10.0", "2.10.0"]',
        "patch[t/a.py].pairs: '2.10.0' has two patches for this file; a file has one",
    ),
    ('["2.10.0"]', "[]", "patch[t/a.py].pairs: empty; name the pairs that the patch is for"),
    (
        '[[patch]]\nfile = "t/a.py"',
        '[[patch]]\nfile = "t/b.py"',
        "patch[t/b.py].file: no such test file; did you mean 't/a.py'?",
    ),
    (
        '[[patch]]\nfile = "t/a.py"',
        '[[patch]]\nfile = "../a.py"',
        "patch[../a.py].file: '../a.py' leaves the tree; give it as upstream has it, such as 'test/a_test.py'",
    ),
    ("torch.f", "torch.1", "api[torch.1].name: not a dotted name such as 'torch.distributed.elastic.timer.expires'"),
    ("torch.f", "f", "api[f].name: not a dotted name such as 'torch.distributed.elastic.timer.expires'"),
    (
        "[upstream]\n",
        "[[api]]\nname = 'torch.f'\nkind = 'class'\ndoes = { en = 'a', zh = 'a' }\n[upstream]\n",
        "api[torch.f]: stands twice; an API is listed once",
    ),
    ("t/a.py::T", "t/b.py::T", "api[torch.C].require: no such test file; did you mean 't/a.py'?"),
    (
        "t/a.py::T.test_a",
        "t/a.py",
        "api[torch.C].require: 't/a.py' is not a case such as 'a_test.py::SomeTest.test_it'",
    ),
    (
        "exception=OSError",
        "odd",
        "api[torch.C].require-behaviours: 'odd' is nothing like 'normal', 'exception=ValueError', 'client=default' or "
        "'read=state'",
    ),
    (
        '[[accepted]]\nfile = "t/a.py"',
        '[[accepted]]\nfile = "t/b.py"',
        "accepted[T.test_b].file: no such test file; did you mean 't/a.py'?",
    ),
    ("T.test_b", "test_b", "accepted[test_b].case: 'test_b' is not a case such as 'SomeTest.test_it'"),
    ("Known.", r"\n", r"accepted[T.test_b].reason: '\n' is not one line of text"),
    ('pairs = ["2.9.0"]', 'pairs = ["2.9"]', "accepted[T.test_b].pairs: no pair '2.9'; did you mean '2.9.0'?"),
    ("keep = 7", "keep = 0", "nightly.keep: 0 is not a number from 1 to 100000"),
    ("keep = 7", "days = 1_000_000_000", "nightly.days: 1000000000 is not a number from 1 to 100000"),
    ("keep = 7", "free-gib = inf", "nightly.free-gib: inf is not a number from 1 to 100000"),
    ("keep = 7", "free-gib = nan", "nightly.free-gib: nan is not a number from 1 to 100000"),
]


@pytest.mark.parametrize(("old", "new", "line"), KEYS_AND_TYPES + MEANING, ids=lambda text: text[:40])
def test_a_mistake_is_one_line(old: str, new: str, line: str, load: Callable[[str], matrix.Batch]) -> None:
    assert problems(lambda: load(swap(old, new))) == [f"matrix.toml: {line}"]


LEAVES = "leaves the tree; give it as upstream has it"
NO_PATH = "is not a path as upstream has it"


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/etc/a_test.py", LEAVES),
        ("../a.py", LEAVES),
        ("test/../../a.py", LEAVES),
        (r"test\\a_test.py", NO_PATH),
        (r"test/\u0000.py", NO_PATH),
        (r"test/a\u2028b.py", NO_PATH),
        ("./t/a.py", NO_PATH),
        ("test//a_test.py", NO_PATH),
        ("test/-v.py", NO_PATH),
        (f"{'a' * 201}/a_test.py", NO_PATH),
        (f"{'a/' * 500}a_test.py", NO_PATH),
        ("t/a.pyc", "not a Python file that can be imported"),
        ("test/a.b_test.py", "not a Python file that can be imported"),
    ],
)
def test_a_path_stays_in_the_tree(path: str, why: str, load: Callable[[str], matrix.Batch]) -> None:
    [line] = problems(lambda: load(swap('path = "t/a.py"', f'path = "{path}"', REQUIRED)))
    assert line.startswith("matrix.toml: test-file[")
    assert "].path: " in line
    assert line.endswith(f"{why}, such as 'test/a_test.py'")


@pytest.mark.parametrize(
    ("torch", "what"),
    [
        ("2.10.0+cpu", "'2.10.0+cpu' names a build; leave '+…' out, a CPU build is preferred anyway"),
        ("v2.10.0", "'v2.10.0' is not how releases are named; did you mean '2.10.0'?"),
        ("2", "'2' is not how releases are named; did you mean '2.0.0'?"),
        ("2.10RC1", "'2.10RC1' is not how releases are named; did you mean '2.10.0rc1'?"),
        ("two", "'two' is not a version such as '2.10.0' or '2.7.1.post2'"),
        ("../2", "'../2' is not a version such as '2.10.0' or '2.7.1.post2'"),
    ],
)
def test_torch_is_a_release(torch: str, what: str, load: Callable[[str], matrix.Batch]) -> None:
    named = problems(lambda: load(swap('torch = "2.10.0"', f'name = "2.10.0", torch = "{torch}"')))
    unnamed = problems(lambda: load(swap('torch = "2.10.0"', f'torch = "{torch}"')))
    assert named == [f"matrix.toml: pair[2.10.0].torch: {what}"]
    assert [line for line in unnamed if "pair[" in line] == [f"matrix.toml: pair[{torch}].torch: {what}"]


@pytest.mark.parametrize(
    ("pair", "keys"),
    [('torch = "1!2.0.0"', ["name"]), ('torch = "two", name = ".."', ["torch", "name"])],
)
def test_a_name_is_one_for_a_folder(pair: str, keys: list[str], load: Callable[[str], matrix.Batch]) -> None:
    lines = problems(lambda: load(swap('torch = "2.10.0"', pair)))
    assert [line.split("]")[1].split(":")[0] for line in lines if "pair[" in line] == [f".{key}" for key in keys]


def test_an_empty_name_is_none(load: Callable[[str], matrix.Batch]) -> None:
    assert load(swap('torch = "2.10.0"', 'name = "", torch = "2.10.0"')).pairs[1].name == "2.10.0"


ONE = 'torch = "2.10.0", python = "3.11", torch-npu = "2.10.0"'


@pytest.mark.parametrize(
    ("second", "line"),
    [
        ('torch-npu = "2.10.0"', "pair[2.10.0]: stands twice; remove one"),
        ('torch-npu = "2.10.0", name = "again"', "pair[again]: stands twice; remove one"),
        (
            'torch-npu = "2.10.0.post2"',
            "pair[2.10.0]: stands twice; give one a name of its own, such as name = '2.10.0-npu2.10.0.post2'",
        ),
        *(
            (
                f'torch-npu = "2.10.0.post2", name = "{name}"',
                f"pair[{name}].name: too like '2.10.0', both would have one folder; rename one",
            )
            for name in ("2-10-0", "2_10.0", "2.10.0-")
        ),
        (
            'torch-npu = "2.10.0.post2", name = ".."',
            "pair[..].name: '..' can't name a session; use letters, digits, dot and dash",
        ),
        (
            'torch-npu = "2.10.0.post2", name = "Report.html"',
            "pair[Report.html].name: 'Report.html' can't name a session; use letters, digits, dot and dash",
        ),
        (
            'torch-npu = "2.10.0.post2", name = "a b"',
            "pair[a b].name: 'a b' can't name a session; use letters, digits, dot and dash",
        ),
    ],
)
def test_no_two_pairs_share_anything_by_their_names(
    second: str, line: str, load: Callable[[str], matrix.Batch]
) -> None:
    assert problems(lambda: load(two_pairs(second))) == [f"matrix.toml: {line}"]


def test_pairs_of_one_torch_have_names(load: Callable[[str], matrix.Batch]) -> None:
    pairs = load(two_pairs('torch-npu = "2.10.0.post2", name = "2.10.0-post2"')).pairs
    assert [(pair.name, pair.torch_npu) for pair in pairs] == [("2.10.0", "2.10.0"), ("2.10.0-post2", "2.10.0.post2")]


def two_pairs(second: str) -> str:
    """Return a batch of torch 2.10.0 twice, the other keys of the second pair being ``second``."""
    pairs = f"pair = [{{ {ONE} }}, {{ torch = '2.10.0', python = '3.11', {second} }}]"
    names = [row.get("name", "2.10.0") for row in tomllib.loads(pairs)["pair"]]
    text = swap('{ "2.9.0" = 1, "2.10.0" = 2 }', to_toml(dict.fromkeys(names, 1)), REQUIRED)
    before, after = text.partition("pair = [")[0], text.partition("[upstream]")[2]
    return f"{before}{pairs}\n[upstream]{after}"


def test_all_mistakes_are_told_at_once(load: Callable[[str], matrix.Batch]) -> None:
    text = BATCH
    for old, new in [
        ('batch = "small"', 'batch = "a b"'),
        ('torch-npu = "2.9.0.post2"', "torch-npu = 2"),
        ("limit = 60", "limit = -1"),
        ('"2.9.0" = 1', '"2.9.0" = 0'),
        ('pairs = ["2.10.0"]', 'pairs = ["2.11.0"]'),
        ('"function"', '"func"'),
    ]:
        text = text.replace(old, new)
    assert [line.split(": ")[1] for line in problems(lambda: load(text))] == [
        "pair[2.9.0].torch-npu",
        "api[torch.f].kind",
        "batch",
        "test-file[t/a.py].limit",
        "test-file[t/a.py].expected.2.9.0",
        "patch[t/a.py].pairs",
    ]


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b'batch = "small', "not readable as TOML: Unterminated string (at end of document)"),
        (b"batch = 1\nbatch = 2", "not readable as TOML: Cannot overwrite a value (at end of document)"),
        (b"a\xff = 1", "not UTF-8: byte 0xff in line 1"),
        (b"# \n\nbatch = '\xd0'", "not UTF-8: byte 0xd0 in line 3"),
        (b"batch = " + b"[" * 5000, "not readable as TOML: nested too deeply"),
        (b"batch = \x00", "not readable as TOML: Invalid value (at line 1, column 9)"),
    ],
    ids=repr,
)
def test_a_file_that_is_no_toml(data: bytes, line: str, load: Callable[[bytes], matrix.Batch]) -> None:
    assert problems(lambda: load(data)) == [f"matrix.toml: {line}"]


def test_an_empty_file_lacks_all_that_is_required(load: Callable[[bytes], matrix.Batch]) -> None:
    keys = ("batch", "title", "upstream", "pair", "test-file", "api")
    assert problems(lambda: load(b"")) == [f"matrix.toml: {key}: missing" for key in keys]


def test_a_batch_has_pairs_and_test_files(load: Callable[[str], matrix.Batch]) -> None:
    sections = 'batch = "a"\ntitle = { en = "a", zh = "a" }\nupstream.repository = ["a"]\n'
    assert problems(lambda: load(f"{sections}pair = []\ntest-file = []\napi = []")) == [
        "matrix.toml: pair: empty; a batch has at least one",
        "matrix.toml: test-file: empty; a batch has at least one",
    ]


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    missing, folder, loop = (tmp_path / name for name in ("missing.toml", "folder.toml", "loop.toml"))
    folder.mkdir()
    loop.symlink_to(loop)
    assert problems(lambda: matrix.load(missing)) == [
        f"{missing}: not found; MATRIX names a TOML file like matrix.toml"
    ]
    assert problems(lambda: matrix.load(folder)) == [f"{folder}: can't be read: Is a directory"]
    assert problems(lambda: matrix.load(loop)) == [f"{loop}: can't be read: Too many levels of symbolic links"]


def test_a_byte_order_mark_is_no_mistake(load: Callable[[str], matrix.Batch]) -> None:
    assert load("\ufeff" + BATCH).matrix.batch == "small"


def test_names_cannot_break_a_line(load: Callable[[str], matrix.Batch]) -> None:
    assert problems(lambda: load(swap('{ en = "A small', '{ "a\\n\\u001b[31mb\\u2028" = 1, en = "A small'))) == [
        r"matrix.toml: title.a\n\x1b[31mb\u2028: unknown key; known are en, zh"
    ]


def test_another_batch_has_its_own_pairs_files_and_patches(tmp_path: Path) -> None:
    path = tmp_path / "elsewhere" / "other.toml"
    patch = path.parent / "patches/v2.10.0/t/other.py.patch"
    patch.parent.mkdir(parents=True)
    patch.write_text("a patch")
    path.write_text(BATCH.replace("t/a.py", "t/other.py"))
    (tmp_path / "link.toml").symlink_to(path)
    for batch in (matrix.load(path), matrix.load(tmp_path / "link.toml")):
        assert [pair.name for pair in batch.pairs] == ["2.9.0", "2.10.0"]
        assert batch.patches(batch.pair("2.9.0")) == {}
        assert batch.patches(batch.pair("2.10.0")) == {"t/other.py": patch}
        assert batch.root == path.parent


def validator() -> jsonschema.Draft202012Validator:
    """Return what an editor would check a batch with; JSON has dates as texts."""
    schema = matrix.schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("text", [SHIPPED.read_text(encoding="utf-8"), BATCH], ids=["shipped", "small"])
def test_the_schema_takes_what_load_takes(text: str) -> None:
    assert not list(validator().iter_errors(as_json(text)))


@pytest.mark.parametrize(("old", "new", "line"), [row for row in KEYS_AND_TYPES if "date" not in row[2]])
def test_the_schema_refuses_wrong_keys_and_types(old: str, new: str, line: str) -> None:
    assert list(validator().iter_errors(as_json(swap(old, new)))), line


def as_json(text: str) -> object:
    """Return a TOML file's data as JSON has it."""
    return json.loads(json.dumps(tomllib.loads(text), default=str))


def usable_or_told(path: Path) -> None:
    """Check that ``path`` is a batch, or that what is wrong with it is told in lines."""
    try:
        batch = matrix.load(path)
    except ConfigError as error:
        assert error.problems
        for line in error.problems:
            assert line.isprintable() and len(line) < 2000
            assert line.startswith(f"{path.name}: ") and line != f"{path.name}: "
    else:
        assert batch.pairs and batch.matrix.test_file
        for template in (batch.matrix.upstream.tag, *batch.matrix.upstream.repository):
            assert template.format(torch="2.10.0", torch_npu="2.10.0")
        assert msgspec.json.encode(batch.matrix)


LEAVES_OF_TOML = st.one_of(
    st.text(max_size=8),
    st.sampled_from(["2.10.0", "v2", "..", "t/a.py", "{torch}", "{torch.x}", "a" * 300, "numpy", "é\0\n"]),
    st.integers(),
    st.floats(),
    st.booleans(),
    st.dates(),
    st.datetimes(),
    st.times(),
)
KEYS = st.sampled_from(["name", "torch", "path", "file", "pair", "en", "2.9.0", "pairs", "does", ""]) | st.text(
    max_size=4
)
VALUES = st.recursive(
    LEAVES_OF_TOML, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=8
)


def to_toml(value: object) -> str:
    """Return a value as TOML."""
    match value:
        case dict():
            return "{" + ", ".join(f"{to_toml(key)} = {to_toml(item)}" for key, item in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(to_toml, value)) + "]"
        case str():
            return '"' + "".join(f"\\U{ord(character):08x}" for character in value) + '"'
        case bool():
            return str(value).lower()
        case date() | datetime() | time():
            return value.isoformat()
    return repr(value)


def swap_somewhere(value: Any, new: object, dice: random.Random) -> Any:
    """Return ``value`` with one of the values in it, or of its keys, replaced or added."""
    if not isinstance(value, dict | list) or not value or dice.random() < 0.2:
        return new
    keys = list(value) if isinstance(value, dict) else range(len(value))
    key = dice.choice(keys)
    if isinstance(value, dict) and dice.random() < 0.1:
        value[dice.choice(["pair", "name", "en", "x"])] = new
    else:
        value[key] = swap_somewhere(value[key], new, dice)
    return value


@given(st.lists(VALUES, min_size=1, max_size=4), st.randoms(use_true_random=False))
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_values_are_usable_or_told(
    tmp_path_factory: pytest.TempPathFactory, values: list[object], dice: random.Random
) -> None:
    data = tomllib.loads(BATCH)
    for value in values:
        data = swap_somewhere(data, value, dice)
    table = data if isinstance(data, dict) else {"batch": data}
    path = tmp_path_factory.getbasetemp() / "values.toml"
    patch = path.parent / "patches/v2.10.0/t/a.py.patch"
    patch.parent.mkdir(parents=True, exist_ok=True)
    patch.touch()
    path.write_text("\n".join(f"{to_toml(key)} = {to_toml(value)}" for key, value in table.items()))
    tomllib.loads(path.read_text())
    usable_or_told(path)


@given(st.data())
@settings(deadline=None)
def test_any_text_is_usable_or_told(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    text = SHIPPED.read_bytes()
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        end = start + data.draw(st.integers(0, 40))
        text = text[:start] + data.draw(st.binary(max_size=4) | st.sampled_from([b'"', b"\n", b"[", b"]"])) + text[end:]
    path = tmp_path_factory.getbasetemp() / "text.toml"
    path.write_bytes(text)
    usable_or_told(path)
