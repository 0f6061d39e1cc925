"""Upstream's tree: the right commit, byte by byte, fetched once, whatever was set, broken or moved. Real git."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import hypothesis
import msgspec
import pytest
from hypothesis import strategies as st

from scripts import matrix, results, storage, upstream
from scripts.errors import Blocked
from scripts.scope import RunScope
from scripts.upstream import Tree
from tests import stubs
from tests.running_support import eventually

FILE = "test/timer/a_test.py"
SIBLING = "test/timer/helper.py"
OTHER = "test/agent/b_test.py"
ELSEWHERE = "docs/big.bin"


class Repository:
    """A git repository to fetch from."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = folder.as_uri()
        folder.mkdir(parents=True)
        self.git("init", "-q", "-b", "main")
        self.git("config", "uploadpack.allowFilter", "true")

    def git(self, *arguments: str) -> str:
        env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        env |= {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
        who = ("-c", "user.name=n", "-c", "user.email=e@example.com")
        argv = ["git", *who, *arguments]
        return subprocess.run(argv, cwd=self.folder, env=env, check=True, capture_output=True, text=True).stdout.strip()

    def commit(self, files: Mapping[str, str], *, tag: str, options: Sequence[str] = ()) -> str:
        """Commit ``files`` and tag that (``options`` are those of git tag); return the commit."""
        for name, text in files.items():
            write(self.folder / name, text)
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", tag)
        self.git("tag", "-f", *options, tag)
        return self.git("rev-parse", "HEAD")


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    return path


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "repository")


def load(folder: Path, *, files: Sequence[str] = (FILE,), pin: str | None = None, **keys: object) -> matrix.Batch:
    pair = stubs.pair_row("2.10.0") | ({"commit": pin} if pin else {})
    texts = dict.fromkeys(files, "")
    return matrix.load(stubs.write_batch(folder, pairs=[pair], files=texts, **keys))  # type: ignore[arg-type]


def fetch(
    folder: Path,
    *sources: str,
    files: Sequence[str] = (FILE,),
    pin: str | None = None,
    scope: RunScope | None = None,
    fresh: bool = False,
) -> Tree:
    """Fetch the tree of torch 2.10.0 from ``sources``."""
    batch = load(folder / "batch", files=files, pin=pin)
    return upstream.fetch(batch, batch.pairs[0], sources, folder, scope or RunScope(), fresh=fresh)


def content(tree: Tree) -> dict[str, str]:
    """Return what lies in a tree: not what its manifest says."""
    return {
        path.relative_to(tree.path).as_posix(): path.read_bytes().decode()
        for path in tree.path.rglob("*")
        if path.is_file()
    }


# Git


@pytest.mark.parametrize("options", [[], ["-a", "-m", "annotated"]], ids=["lightweight", "annotated"])
def test_a_tag_is_resolved_to_its_commit(
    tmp_path: Path, repository: Repository, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    commit = repository.commit({FILE: "1", SIBLING: "2", ELSEWHERE: "3"}, tag="v2.10.0", options=options)
    repository.commit({FILE: "later"}, tag="v2.11.0")
    tree = fetch(tmp_path, repository.url)
    assert (tree.commit, tree.tag, tree.source) == (commit, "v2.10.0", repository.url)
    assert content(tree) == {FILE: "1", SIBLING: "2"}
    assert tree.blobs == {name: repository.git("rev-parse", f"{commit}:{name}") for name in (FILE, SIBLING)}
    # Asked again, it is seen to be where it was, and not fetched again.
    monkeypatch.setattr(upstream._Fetch, "clone", lambda *_: pytest.fail("fetched again"))
    assert fetch(tmp_path, repository.url, fresh=True) == tree


def test_only_what_is_wanted_is_fetched(tmp_path: Path, repository: Repository) -> None:
    """Everything else is gone from the repository, so whoever asks for it gets an error."""
    repository.commit({FILE: "old", ELSEWHERE: "old"}, tag="v2.9.0")
    commit = repository.commit({FILE: "1", ELSEWHERE: "big", "test/above.py": "x", "top.py": "y"}, tag="v2.10.0")
    trees = repository.git("ls-tree", "-r", "-t", commit).splitlines()
    kept = {line.split()[2] for line in trees if " tree " in line} | {repository.git("rev-parse", f"{commit}:{FILE}")}
    kept |= {commit, repository.git("rev-parse", f"{commit}^{{tree}}")}
    for path in (repository.folder / ".git" / "objects").glob("??/*"):
        if path.parent.name + path.name not in kept:
            path.unlink()
    assert content(fetch(tmp_path, repository.url)) == {FILE: "1"}


def test_a_server_that_knows_no_filter_gives_the_same(tmp_path: Path, repository: Repository) -> None:
    repository.commit({FILE: "1", ELSEWHERE: "big"}, tag="v2.10.0")
    repository.git("config", "--unset", "uploadpack.allowFilter")
    assert content(fetch(tmp_path, repository.url)) == {FILE: "1"}


@pytest.mark.parametrize("path", ["a_test.py", "[x]*/a_test.py", "with space/ünï/a_test.py", "#a/!b/a_test.py"])
def test_a_test_file_may_lie_anywhere(tmp_path: Path, repository: Repository, path: str) -> None:
    repository.commit({path: "1", "x/not_this.py": "2"}, tag="v2.10.0")
    assert content(fetch(tmp_path, repository.url, files=[path]))[path] == "1"


def test_links_and_submodules_of_upstream_lead_nowhere(tmp_path: Path, repository: Repository) -> None:
    (repository.folder / "test" / "timer").mkdir(parents=True)
    (repository.folder / "test" / "timer" / "passwd.py").symlink_to("/etc/passwd")
    (repository.folder / "test" / "timer" / "etc").symlink_to("/etc")
    commit = repository.commit({FILE: "1"}, tag="v0")
    repository.git("update-index", "--add", "--cacheinfo", f"160000,{commit},test/timer/module")
    repository.git("commit", "-q", "-m", "submodule")
    repository.git("tag", "v2.10.0")
    assert content(fetch(tmp_path, repository.url)) == {FILE: "1"}


def test_upstreams_bytes_are_kept_whatever_attributes_say(tmp_path: Path, repository: Repository) -> None:
    text = "unix\n# $Id$\n"
    repository.commit({FILE: text, ".gitattributes": "*.py text eol=crlf ident\n"}, tag="v2.10.0")
    assert content(fetch(tmp_path, repository.url)) == {FILE: text}


def test_what_the_user_has_set_up_for_git_changes_nothing(
    tmp_path: Path, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.commit({FILE: "a\nb\n"}, tag="v2.10.0")
    hook = write(tmp_path / "hooks" / "post-checkout", f"#!/bin/sh\ntouch {tmp_path}/hooked\nexit 1\n")
    hook.chmod(0o755)
    shutil.copytree(tmp_path / "hooks", tmp_path / "template" / "hooks")
    write(tmp_path / "attributes", "*.py text eol=crlf\n")
    settings = f"""
        [core]
            autocrlf = true
            hooksPath = {tmp_path}/hooks
            attributesFile = {tmp_path}/attributes
        [init]
            templateDir = {tmp_path}/template
            defaultObjectFormat = sha256
        [submodule]
            recurse = true
        [fetch]
            prune = true
    """
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(write(tmp_path / "gitconfig", settings)))
    assert content(fetch(tmp_path, repository.url)) == {FILE: "a\nb\n"}
    assert not (tmp_path / "hooked").exists()


def test_a_repository_that_the_caller_works_on_is_not_touched(
    tmp_path: Path, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hook of git calls with these set, for example."""
    repository.commit({FILE: "1"}, tag="v2.10.0")
    mine = Repository(tmp_path / "mine")
    mine.commit({"x": "y"}, tag="mine")
    before = mine.git("status", "--porcelain", "--branch"), mine.git("for-each-ref"), mine.git("remote")
    for name, value in {"GIT_DIR": ".git", "GIT_WORK_TREE": ".", "GIT_INDEX_FILE": ".git/index"}.items():
        monkeypatch.setenv(name, str(mine.folder / value))
    assert content(fetch(tmp_path, repository.url)) == {FILE: "1"}
    assert before == (mine.git("status", "--porcelain", "--branch"), mine.git("for-each-ref"), mine.git("remote"))


def test_a_mirror_that_is_set_up_in_git_is_used_and_a_password_is_written_nowhere(
    tmp_path: Path, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.commit({FILE: "1"}, tag="v2.10.0")
    settings = f'[url "{repository.url}"]\ninsteadOf = http://someone:s3cr3t@git.invalid/x.git\n'
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(write(tmp_path / "gitconfig", settings)))
    tree = fetch(tmp_path, "http://someone:s3cr3t@git.invalid/x.git")
    assert (tree.source, content(tree)) == ("http://git.invalid/x.git", {FILE: "1"})
    kept = [path for path in storage.cache_root().rglob("*") if path.is_file()]
    assert not [path for path in kept if b"s3cr3t" in path.read_bytes()]
    monkeypatch.delenv("GIT_CONFIG_GLOBAL")
    assert fetch(tmp_path, "http://other:n3w@git.invalid/x.git").path == tree.path


def test_repositories_that_differ_in_the_query_alone_are_two(
    tmp_path: Path, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Repository(tmp_path / "other")
    for number, each in enumerate((repository, other)):
        each.commit({FILE: str(number)}, tag="v2.10.0")
    settings = "".join(
        f'[url "{each.url}"]\ninsteadOf = http://git.invalid/?repo={number}\n'
        for number, each in enumerate((repository, other))
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(write(tmp_path / "gitconfig", settings)))
    assert [content(fetch(tmp_path, f"http://git.invalid/?repo={number}"))[FILE] for number in (0, 1)] == ["0", "1"]


# Folders and lists


def test_a_folder_template_is_read_below_the_batch_or_below_the_caller(tmp_path: Path) -> None:
    write(tmp_path / "batch/trees/v2.10.0" / FILE, "batch")
    write(tmp_path / "trees/pytorch-2.10.0" / FILE, "caller")
    batch = load(tmp_path / "batch")
    write(tmp_path / "batch/trees/v2.10.0" / FILE, "batch")
    assert content(upstream.fetch(batch, batch.pairs[0], [], tmp_path, RunScope())) == {FILE: "batch"}
    tree = fetch(tmp_path, "trees/pytorch-{torch}")
    assert (content(tree), tree.source, tree.commit) == ({FILE: "caller"}, f"{tmp_path}/trees/pytorch-2.10.0", None)


def test_a_folder_may_lie_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    write(tmp_path / "home/pytorch" / FILE, "home")
    assert content(fetch(tmp_path, "~/pytorch")) == {FILE: "home"}


def test_the_path_of_a_repository_is_fetched_from_at_the_tag(tmp_path: Path, repository: Repository) -> None:
    commit = repository.commit({FILE: "tagged"}, tag="v2.10.0")
    repository.commit({FILE: "later"}, tag="v2.11.0")
    tree = fetch(tmp_path, str(repository.folder))
    assert (tree.commit, content(tree)) == (commit, {FILE: "tagged"})


@pytest.mark.parametrize(
    ("change", "is_known"),
    [
        pytest.param(lambda _: None, True, id="clean"),
        pytest.param(lambda folder: write(folder / "docs/x", "untracked elsewhere"), True, id="dirty elsewhere"),
        pytest.param(lambda folder: write(folder / FILE, "edited"), False, id="edited"),
        pytest.param(lambda folder: write(folder / FILE, "1\r\n"), False, id="line endings"),
        pytest.param(lambda folder: write(folder / "test/timer/new.py", ""), False, id="a new file"),
        pytest.param(lambda folder: write(folder / "test/timer/x.log", "ignored"), False, id="an ignored file"),
        pytest.param(lambda folder: (folder / SIBLING).unlink(), False, id="a removed file"),
        pytest.param(lambda folder: shutil.rmtree(folder / ".git"), False, id="no git"),
        pytest.param(lambda folder: shutil.rmtree(folder / ".git/objects"), False, id="broken git"),
    ],
)
def test_a_folder_is_a_commit_only_if_it_is_that_commit_to_the_byte(
    tmp_path: Path, change: Callable[[Path], object], is_known: bool
) -> None:
    checkout = Repository(tmp_path / "v2.10.0")
    commit = checkout.commit({FILE: "1\n", SIBLING: "2\n", ".gitignore": "*.log\n"}, tag="any")
    change(checkout.folder)
    index = checkout.folder / ".git" / "index"
    before = index.exists() and index.stat().st_mtime_ns
    tree = fetch(tmp_path, "v{torch}")
    assert tree.commit == (commit if is_known else None)
    assert before == (index.exists() and index.stat().st_mtime_ns)


def test_a_folder_below_somebody_elses_repository_is_not_its_commit(repository: Repository) -> None:
    repository.commit({f"trees/v2.10.0/{FILE}": "1"}, tag="v2.10.0")
    assert fetch(repository.folder, "trees/v{torch}").commit is None


def test_of_a_folders_links_only_those_to_its_neighbours_are_followed(tmp_path: Path) -> None:
    secret = write(tmp_path / "secret", "secret")
    write(tmp_path / "trees/v2.9.0" / FILE, "neighbour")
    folder = write(tmp_path / "trees/v2.10.0" / SIBLING, "own").parent
    (folder / "a_test.py").symlink_to("../../../v2.9.0/test/timer/a_test.py")
    (folder / "secret.py").symlink_to(secret)
    (folder / "loop.py").symlink_to("loop.py")
    (folder / "above").symlink_to(tmp_path)
    os.mkfifo(folder / "pipe.py")
    assert content(fetch(tmp_path, "trees/v{torch}")) == {FILE: "neighbour", SIBLING: "own"}


def test_sources_are_tried_in_order_and_what_was_passed_over_is_said(tmp_path: Path, repository: Repository) -> None:
    repository.commit({FILE: "1"}, tag="v2.9.0")
    write(tmp_path / "without/test/x.py", "")
    write(tmp_path / "good/2.10.0" / FILE, "good")
    tree = fetch(tmp_path, "gone/{torch}", repository.url, "without", "good/{torch}", "never/asked")
    assert content(tree) == {FILE: "good"}
    assert tree.tried == [
        f"there is no folder {tmp_path}/gone/2.10.0 with upstream's tree",
        f"{repository.url} has no tag v2.10.0",
        f"{tmp_path}/without at v2.10.0 has no {FILE}",
    ]


@pytest.mark.parametrize(
    ("source", "code", "told"),
    [
        ("gone", "upstream-folder", "there is no folder"),
        ("trees/{version}", "upstream-source", "'trees/{version}' is neither a git URL nor a folder template"),
        ("trees/{", "upstream-source", "neither"),
        ("https://user:s3cr3t@host:port/x.git", "upstream-source", "'https://host:port/x.git' is neither"),
        ("https://[::1/x.git", "upstream-source", "neither"),
        ("file:///nonexistent/x.git", "upstream-unreachable", "file:///nonexistent/x.git does not answer: git fetch:"),
        ("ext::sh://-c id", "upstream-unreachable", "'ext' not allowed"),
    ],
)
def test_a_source_that_is_none_is_named(tmp_path: Path, source: str, code: str, told: str) -> None:
    with pytest.raises(Blocked) as blocked:
        fetch(tmp_path, source)
    assert (blocked.value.code, told in blocked.value.cause) == (code, True)


def test_when_no_source_has_it_every_reason_is_told(tmp_path: Path) -> None:
    with pytest.raises(Blocked) as blocked:
        fetch(tmp_path, "one", "two")
    assert f"{tmp_path}/one" in blocked.value.cause
    assert f"{tmp_path}/two" in blocked.value.cause


def test_without_git_that_is_said(tmp_path: Path, repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Blocked, match="git could not be started") as blocked:
        fetch(tmp_path, repository.url)
    assert blocked.value.code == "git"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder to somebody else")
def test_gits_advice_reaches_the_user(tmp_path: Path, repository: Repository) -> None:
    repository.commit({FILE: "1"}, tag="v2.10.0")
    os.chown(repository.folder / ".git", 12345, 12345)
    with pytest.raises(Blocked, match=r"git config --global --add safe\.directory"):
        fetch(tmp_path, repository.url)


# The sample


@pytest.mark.parametrize(
    ("pair", "layer"),
    [("2.6.0", "v2.6.0"), ("2.9.0", "v2.6.0"), ("2.10.0", "v2.10.0"), ("2.12.0", "v2.10.0"), ("2.13.0", "v2.6.0")],
)
def test_the_sample_changes_with_the_version_as_upstream_does(tmp_path: Path, pair: str, layer: str) -> None:
    batch = matrix.load(stubs.ROOT / "matrix.toml")
    tree = upstream.fetch(batch, batch.pair(pair), ["sample"], tmp_path, RunScope())
    found = content(tree)
    assert found.keys() == tree.blobs.keys() == {file.path for file in batch.matrix.test_file}
    for file, expected in ((batch.matrix.test_file[2].path, layer), (batch.matrix.test_file[1].path, "v2.6.0")):
        assert found[file] == (upstream.SAMPLE_ROOT / expected / file).read_text()
    assert tree.is_sample
    assert tree.commit is None


# Commits


def test_a_tag_that_is_not_at_the_pinned_commit_is_fetched_and_both_are_known(
    tmp_path: Path, repository: Repository
) -> None:
    pinned = repository.commit({FILE: "1"}, tag="v2.10.0")
    moved = repository.commit({FILE: "2"}, tag="v2.10.0")
    tree = fetch(tmp_path, repository.url, pin=pinned)
    pair = load(tmp_path / "batch", pin=pinned).pairs[0]
    facts = results.upstream_facts(pair, tree, None)
    assert (facts.commit, facts.pinned) == (moved, pinned)
    repository.folder.rename(tmp_path / "gone")
    again = fetch(tmp_path, repository.url, pin=pinned)
    assert "does not answer" in again.tried[0]
    assert msgspec.structs.replace(again, tried=[]) == tree


def test_a_tag_that_moves_is_followed_only_where_the_pin_is(tmp_path: Path, repository: Repository) -> None:
    first = repository.commit({FILE: "1"}, tag="v2.10.0")
    assert fetch(tmp_path, repository.url, pin=first).commit == first
    second = repository.commit({FILE: "2"}, tag="v2.10.0")
    assert fetch(tmp_path, repository.url, pin=first).commit == first
    assert fetch(tmp_path, repository.url, pin=second).commit == second


def test_a_tag_that_nobody_pinned_is_asked_for_again_when_all_is_to_be_fresh(
    tmp_path: Path, repository: Repository
) -> None:
    first = repository.commit({FILE: "1"}, tag="v2.10.0")
    assert fetch(tmp_path, repository.url).commit == first
    second = repository.commit({FILE: "2"}, tag="v2.10.0")
    assert fetch(tmp_path, repository.url).commit == first
    assert fetch(tmp_path, repository.url, pin=first, fresh=True).commit == first
    moved = fetch(tmp_path, repository.url, fresh=True)
    assert (moved.commit, content(moved)) == (second, {FILE: "2"})
    assert fetch(tmp_path, repository.url) == moved
    repository.folder.rename(tmp_path / "gone")
    kept = fetch(tmp_path, repository.url, fresh=True)
    assert kept.commit == second
    assert "does not answer" in kept.tried[0]


def test_another_reference_that_ends_like_the_tag_is_not_the_tag(tmp_path: Path, repository: Repository) -> None:
    first = repository.commit({FILE: "1"}, tag="v2.10.0")
    repository.git("update-ref", "refs/zz/refs/tags/v2.10.0", first)
    assert fetch(tmp_path, repository.url).commit == first
    second = repository.commit({FILE: "2"}, tag="v2.10.0")
    assert fetch(tmp_path, repository.url, fresh=True).commit == second


def test_two_tags_of_one_commit_and_two_sets_of_folders_keep_apart(tmp_path: Path, repository: Repository) -> None:
    repository.commit({FILE: "1", OTHER: "2"}, tag="v2.10.0")
    one, both = fetch(tmp_path, repository.url), fetch(tmp_path, repository.url, files=[FILE, OTHER])
    assert (content(one), content(both)) == ({FILE: "1"}, {FILE: "1", OTHER: "2"})
    assert one.commit == both.commit
    assert fetch(tmp_path, repository.url) == one


# The cache


def test_a_second_use_needs_no_network_from_whichever_checkout(tmp_path: Path, repository: Repository) -> None:
    repository.commit({FILE: "1"}, tag="v2.10.0")
    first = fetch(tmp_path / "one", repository.url)
    repository.folder.rename(tmp_path / "gone")
    assert fetch(tmp_path / "two", repository.url) == first
    assert content(first) == {FILE: "1"}


def test_a_tree_is_never_to_be_written_to(tmp_path: Path, repository: Repository) -> None:
    repository.commit({FILE: "1"}, tag="v2.10.0")
    write(tmp_path / "folder" / FILE, "1")
    for tree in (fetch(tmp_path, repository.url), fetch(tmp_path, "folder")):
        assert oct((tree.path / FILE).stat().st_mode & 0o777) == "0o444"


def overwrite(path: Path, text: str) -> None:
    path.chmod(0o644)
    path.write_bytes(text.encode(errors="surrogateescape"))


DAMAGE: dict[str, Callable[[Path], object]] = {
    "a byte changed": lambda tree: overwrite(tree / FILE, "2"),
    "a file removed": lambda tree: (tree / SIBLING).unlink(),
    "a file added": lambda tree: write(tree / "test/timer/conftest.py", "x"),
    "a link added": lambda tree: (tree / "test/timer/x.py").symlink_to("/etc/passwd"),
    "no manifest": lambda tree: (tree.parent / "manifest.json").unlink(),
    "half a manifest": lambda tree: os.truncate(tree.parent / "manifest.json", 30),
    "a manifest of other files": lambda tree: overwrite(tree.parent / "manifest.json", '{"commit":null,"files":{}}'),
    "all gone": lambda tree: shutil.rmtree(tree.parent),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_tree_of_a_folder_is_never_used(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    for name, text in {FILE: "1", SIBLING: "s"}.items():
        write(tmp_path / "folder" / name, text)
    damage(fetch(tmp_path, "folder").path)
    assert content(fetch(tmp_path, "folder")) == {FILE: "1", SIBLING: "s"}


@pytest.mark.parametrize("kind", ["a byte changed", "a file removed", "half a manifest", "a manifest of other files"])
def test_a_damaged_tree_of_a_repository_is_never_used(tmp_path: Path, repository: Repository, kind: str) -> None:
    repository.commit({FILE: "1", SIBLING: "s"}, tag="v2.10.0")
    tree = fetch(tmp_path, repository.url)
    DAMAGE[kind](tree.path)
    assert fetch(tmp_path, repository.url) == tree
    assert content(tree) == {FILE: "1", SIBLING: "s"}


def test_a_damaged_tree_is_no_substitute_for_an_upstream_that_is_gone(tmp_path: Path, repository: Repository) -> None:
    repository.commit({FILE: "1"}, tag="v2.10.0")
    overwrite(fetch(tmp_path, repository.url).path / FILE, "2")
    repository.folder.rename(tmp_path / "gone")
    with pytest.raises(Blocked) as blocked:
        fetch(tmp_path, repository.url)
    assert blocked.value.code == "upstream-unreachable"


@pytest.mark.parametrize("text", ["\udcff\udcfe", "../../../etc", "\0", "0" * 40])
def test_a_reference_that_cannot_be_is_asked_for_anew(tmp_path: Path, repository: Repository, text: str) -> None:
    commit = repository.commit({FILE: "1"}, tag="v2.10.0")
    fetch(tmp_path, repository.url)
    (reference,) = (storage.cache_root() / "refs").iterdir()
    overwrite(reference, text)
    assert fetch(tmp_path, repository.url).commit == commit
    assert reference.read_text() == commit


@hypothesis.given(
    st.binary(max_size=300) | st.from_regex(rb'\{"(commit|files)": ?(1|"a"|\{"\.\./x": "y"\})\}', fullmatch=True)
)
@hypothesis.settings(
    max_examples=50,
    deadline=None,
    database=None,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
def test_no_manifest_brings_it_down(tmp_path: Path, data: bytes) -> None:
    write(tmp_path / "folder" / FILE, "1")
    tree = fetch(tmp_path, "folder")
    (tree.path.parent / "manifest.json").write_bytes(data)
    assert content(fetch(tmp_path, "folder")) == {FILE: "1"}


FETCH = """\
import sys
from pathlib import Path
from tests import test_upstream
tree = test_upstream.fetch(Path(sys.argv[1]), *sys.argv[2:])
print(tree.commit)
"""


@pytest.mark.parametrize("step", ["fetch", "checkout", "ls-tree"])
def test_a_fetch_that_was_killed_half_way_is_never_used(tmp_path: Path, repository: Repository, step: str) -> None:
    commit = repository.commit({FILE: "1"}, tag="v2.10.0")
    git = write(
        tmp_path / "bin" / "git",
        f"""#!/bin/sh
        {shutil.which("git")} "$@" || exit
        case "$*" in *"{step} "*) echo $$ > {tmp_path}/there; exec sleep 300;; esac
        """,
    )
    git.chmod(0o755)
    env = os.environ | {"PATH": f"{git.parent}:{os.environ['PATH']}"}
    argv = [sys.executable, "-c", FETCH, str(tmp_path), repository.url]
    with subprocess.Popen(argv, cwd=stubs.ROOT, env=env, stdout=subprocess.DEVNULL) as process:
        eventually(lambda: (tmp_path / "there").exists() and (tmp_path / "there").read_text().strip())
        sleeping = int((tmp_path / "there").read_text())
        process.send_signal(signal.SIGKILL)
    eventually(lambda: not Path(f"/proc/{sleeping}").exists())
    assert fetch(tmp_path, repository.url).commit == commit
    assert not list((storage.cache_root() / "fetch").iterdir())


def test_many_at_once_get_one_good_tree_each_tag(tmp_path: Path, repository: Repository) -> None:
    """Pairs of one run fetch side by side from one repository; so do two runs of one pair."""
    commits = {}
    for number in range(3):
        commits[f"v{number}"] = repository.commit({FILE: str(number)}, tag=f"v{number}")
    repository.git("tag", "same", "v2")
    commits["same"] = commits["v2"]
    code = textwrap.dedent(
        """\
        import sys
        from pathlib import Path
        from scripts import matrix, upstream
        from scripts.scope import RunScope
        from tests import stubs, test_upstream
        folder, url, tag = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
        batch = test_upstream.load(folder, upstream={"repository": [url], "tag": tag})
        tree = upstream.fetch(batch, batch.pairs[0], [], folder, RunScope())
        print(tree.commit, test_upstream.content(tree)[test_upstream.FILE])
        """
    )

    def one(number_and_tag: tuple[int, str]) -> tuple[str, str]:
        number, tag = number_and_tag
        return tag, stubs.run_python(code, after=[str(tmp_path / str(number)), repository.url, tag])

    with ThreadPoolExecutor(8) as executor:
        told = list(executor.map(one, enumerate([*commits, *commits])))
    assert told == [(tag, f"{commit} {tag[-1].replace('e', '2')}\n") for tag, commit in [*commits.items()] * 2]
    assert len(list((storage.cache_root() / "trees").iterdir())) == 3


def test_a_host_that_does_not_answer_is_asked_once_and_quickly(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    url = f"http://someone:s3cr3t@127.0.0.1:{port}/x.git?token=s3cr3t"
    scope = RunScope()
    start = time.monotonic()
    for _ in range(8):
        with pytest.raises(Blocked) as blocked:
            fetch(tmp_path, url, scope=scope)
        assert blocked.value.code == "upstream-unreachable"
        assert blocked.value.cause == f"http://127.0.0.1:{port}/x.git does not answer: Connection refused"
    assert time.monotonic() - start < 2


def test_a_server_that_is_not_gits_is_told_in_gits_words_without_the_password(tmp_path: Path) -> None:
    (tmp_path / "links").mkdir()
    with stubs.index(tmp_path / "links", login="someone:s3cr3t") as url, pytest.raises(Blocked) as blocked:
        fetch(tmp_path, url)
    assert "git fetch: fatal: repository" in blocked.value.cause
    assert "s3cr3t" not in str(blocked.value)


def test_a_relative_cache_setting_is_ignored_as_the_standard_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "folder" / FILE, "1")
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert fetch(tmp_path, "folder").path.is_relative_to(tmp_path / "home" / ".cache" / storage.PROJECT)
