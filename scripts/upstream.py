"""Brings upstream's test tree of a pair into a pristine cache, and says which commit it is."""

from __future__ import annotations

import hashlib
import os
import re
import socket
import stat
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

import msgspec

from . import process, storage
from .errors import Blocked
from .matrix import Batch, Pair
from .scope import RunScope

SAMPLE = "sample"
SAMPLE_ROOT = Path(__file__).parent.parent / "tests" / "sample"
FETCH_SECONDS = 900.0
CONNECT_SECONDS = 5.0
PORTS = {"http": 80, "https": 443, "ssh": 22, "git": 9418}
SCP_LIKE = re.compile(r"[\w.-]+@[\w.-]+:(?!//)")


class Tree(msgspec.Struct, frozen=True, kw_only=True):
    """A pristine tree of a pair.

    ``source`` is where it came from, without credentials; ``commit`` is None where the source doesn't tell (a folder
    without git); ``blobs`` are git's blob ids by path; ``tried`` says why earlier sources were passed over.
    """

    path: Path
    source: str
    tag: str
    commit: str | None
    blobs: dict[str, str]
    tried: list[str] = []

    @property
    def is_sample(self) -> bool:
        """Whether this is the bundled tree, which can't verify anything."""
        return self.source == SAMPLE


class _Manifest(msgspec.Struct, kw_only=True):
    commit: str | None
    files: dict[str, str]


def fetch(batch: Batch, pair: Pair, sources: Sequence[str], base: Path, scope: RunScope) -> Tree:
    """Return the pair's tree from the first source that has it.

    ``sources``, relative to ``base``, overrides matrix.toml's unless it is empty. Raises Blocked when none of them has
    the tree, with the reason of each.
    """
    values = {"torch": pair.torch, "torch_npu": pair.torch_npu}
    tag = batch.matrix.upstream.tag.format(**values)
    files = [file.path for file in batch.matrix.test_file]
    failures: list[Blocked] = []
    for template in sources or batch.matrix.upstream.repository:
        try:
            tree = _fetch_one(template, values, tag, files, pair, base if sources else batch.root, scope)
        except Blocked as failure:
            failures.append(failure)
            continue
        missing = [file for file in files if file not in tree.blobs]
        if missing:
            failures.append(
                Blocked(
                    "upstream-file",
                    f"{tree.source} at {tag} has no {', '.join(missing)}",
                    "Check test-file in matrix.toml against this version of upstream.",
                )
            )
            continue
        return msgspec.structs.replace(tree, tried=[failure.cause for failure in failures])
    if len(failures) == 1:
        raise failures[0]
    raise Blocked(failures[-1].code, "; ".join(failure.cause for failure in failures), failures[-1].remedy)


def blob_id(data: bytes) -> str:
    """Return git's blob id of a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def without_credentials(url: str) -> str:
    """Return a URL as it may stand in a report: no user, password, token or query."""
    parts = urllib.parse.urlsplit(url)
    if not parts.scheme or not parts.netloc:
        return url
    host = parts.netloc.rpartition("@")[2]
    return urllib.parse.urlunsplit((parts.scheme, host, parts.path, "", ""))


# Helpers


def _fetch_one(
    template: str, values: Mapping[str, str], tag: str, files: Sequence[str], pair: Pair, base: Path, scope: RunScope
) -> Tree:
    folders = sorted({str(PurePosixPath(file).parent) for file in files})
    if template == SAMPLE:
        return _from_sample(pair, tag, folders)
    if "://" in template or SCP_LIKE.match(template):
        return _from_git(template.format(**values), tag, folders, pair, scope)
    folder = (base / template.format(**values)).resolve()
    if not folder.is_dir():
        raise Blocked(
            "upstream-folder",
            f"there is no folder {folder} with upstream's tree",
            "Correct upstream.repository in matrix.toml or --upstream.",
        )
    if "{" not in template and _is_repository(folder):
        return _from_git(folder.as_uri(), tag, folders, pair, scope)
    return _store(str(folder), tag, _commit_of(folder, folders), _read_folders([folder], folders))


def _from_sample(pair: Pair, tag: str, folders: Sequence[str]) -> Tree:
    """Lay the sample's folders of all versions up to the pair's one over another, newest on top."""
    layers = sorted(
        (layer for layer in SAMPLE_ROOT.glob("v*.*") if _version_key(layer.name) <= _version_key(pair.torch)),
        key=lambda layer: _version_key(layer.name),
    )
    return _store(SAMPLE, tag, None, _read_folders(layers, folders))


def _version_key(name: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", name)[:3])


def _read_folders(roots: Sequence[Path], folders: Sequence[str]) -> dict[str, bytes]:
    """Read the files of ``folders`` below each root; a later root wins."""
    found: dict[str, bytes] = {}
    for root in roots:
        top = root.resolve()
        for folder in folders:
            for path in _files_below(top / folder):
                name = path.relative_to(top).as_posix()
                # A symlink may lead to another layer or version beside the root, not to the rest of the machine.
                if top.parent in path.resolve().parents:
                    found[name] = path.read_bytes()
    return found


def _files_below(folder: Path) -> Iterator[Path]:
    for parent, names, files in os.walk(folder):
        names[:] = sorted(name for name in names if name not in (".git", "__pycache__"))
        for file in sorted(files):
            path = Path(parent, file)
            if path.is_file():
                yield path


def _store(source: str, tag: str, commit: str | None, contents: Mapping[str, bytes]) -> Tree:
    """Keep the content of a folder as a pristine tree, keyed by what is in it."""
    blobs = {name: blob_id(data) for name, data in sorted(contents.items())}
    key = hashlib.sha256(msgspec.json.encode([source, commit, blobs])).hexdigest()[:32]
    target = storage.cache_root() / "trees" / f"folder-{key}"
    with storage.lock(storage.cache_root() / "locks" / f"{target.name}.lock"):
        if not _is_whole(target, blobs):
            with storage.new_folder(target) as building:
                for name, data in contents.items():
                    _write_read_only(building / "tree" / name, data)
                _write_manifest(building, commit, blobs)
    return Tree(path=target / "tree", source=source, tag=tag, commit=commit, blobs=blobs)


def _from_git(url: str, tag: str, folders: Sequence[str], pair: Pair, scope: RunScope) -> Tree:
    """Fetch a tag shallow, blobless and sparse; without network where the cache has it already."""
    shown = without_credentials(url)
    source = hashlib.sha256(shown.encode()).hexdigest()[:16]
    wanted = hashlib.sha256("\n".join(folders).encode()).hexdigest()[:8]
    cache = storage.cache_root()
    reference = cache / "refs" / source / f"{hashlib.sha256(tag.encode()).hexdigest()[:16]}-{wanted}"
    with storage.lock(cache / "locks" / f"git-{source}-{reference.name}.lock"):
        known = reference.read_text().strip() if reference.is_file() else ""
        if known and pair.commit in (None, known):
            tree = _cached(cache / "trees" / f"git-{source}-{known}-{wanted}", shown, tag)
            if tree:
                return tree
        try:
            scope.once(f"reach {shown}", lambda: _reach(url, shown))
            commit = _clone(url, shown, tag, folders, cache, source, wanted)
        except Blocked:
            # The tag's commit isn't the pinned one and upstream can't be asked again: what is known still holds.
            tree = _cached(cache / "trees" / f"git-{source}-{known}-{wanted}", shown, tag) if known else None
            if tree:
                return tree
            raise
        storage.write(reference, commit.encode())
        tree = _cached(cache / "trees" / f"git-{source}-{commit}-{wanted}", shown, tag)
        if tree is None:
            raise Blocked(
                "cache", f"the tree of {shown} can't be read back from {cache}", "Check that disk and its free space."
            )
        return tree


def _cached(folder: Path, source: str, tag: str) -> Tree | None:
    """Return the cached tree if every byte of it is as it was fetched."""
    manifest = _read_manifest(folder)
    if manifest is None or not _is_whole(folder, manifest.files):
        storage.remove(folder)
        return None
    return Tree(path=folder / "tree", source=source, tag=tag, commit=manifest.commit, blobs=manifest.files)


def _reach(url: str, shown: str) -> None:
    """Raise Blocked within seconds if nobody answers at ``url``; git itself may wait for minutes."""
    parts = urllib.parse.urlsplit(url)
    proxied = any(os.environ.get(name) for name in (f"{parts.scheme}_proxy", f"{parts.scheme.upper()}_PROXY"))
    if parts.scheme not in PORTS or not parts.hostname or proxied:
        return
    try:
        socket.create_connection((parts.hostname, parts.port or PORTS[parts.scheme]), CONNECT_SECONDS).close()
    except OSError as error:
        raise _unreachable(shown, str(error.strerror or error)) from None


def _unreachable(shown: str, why: str) -> Blocked:
    return Blocked(
        "upstream-unreachable",
        f"{shown} does not answer: {why}",
        "Check the network, or name a mirror or a folder with --upstream or upstream.repository in matrix.toml.",
    )


def _clone(url: str, shown: str, tag: str, folders: Sequence[str], cache: Path, source: str, wanted: str) -> str:
    """Fetch ``tag`` into the cache and return its commit."""
    with storage.scratch_folder(cache / "fetch", f"{source}-{wanted}-") as work:
        _git(work, shown, "init", "-q", ".")
        _git(work, shown, "remote", "add", "origin", url)
        try:
            _git(
                work, shown, "fetch", "-q", "--depth=1", "--filter=blob:none", "--no-tags", "origin", f"refs/tags/{tag}"
            )
        except Blocked as failure:
            if "couldn't find remote ref" in failure.cause:
                raise Blocked(
                    "upstream-tag", f"{shown} has no tag {tag}", "Correct upstream.tag or the pair's torch version."
                ) from None
            raise
        commit = _git(work, shown, "rev-parse", "FETCH_HEAD^{commit}").strip()
        _git(work, shown, "sparse-checkout", "set", "--cone", *folders)
        _git(work, shown, "checkout", "-q", "--detach", commit)
        blobs = {}
        for line in _git(work, shown, "ls-files", "-s", "-z", "--", *folders).split("\0"):
            # mode, blob and stage, then the path; a mode of 100… is a file, not a link or a submodule.
            about, _, name = line.partition("\t")
            if about.startswith("100"):
                blobs[name] = about.split()[1]
        with storage.new_folder(cache / "trees" / f"git-{source}-{commit}-{wanted}") as building:
            for name in blobs:
                _write_read_only(building / "tree" / name, (work / name).read_bytes())
            _write_manifest(building, commit, blobs)
    return commit


def _git(work: Path, shown: str, *arguments: str) -> str:
    """Run git in ``work``; raises Blocked with git's own last words, credentials taken out."""
    options = ("core.autocrlf=false", "core.eol=lf", "http.lowSpeedLimit=1000", "http.lowSpeedTime=30", "gc.auto=0")
    argv = ["git", *(part for option in options for part in ("-c", option)), *arguments]
    ending, output = process.capture(argv, cwd=work, env=git_environment(work), limit=FETCH_SECONDS)
    if ending.error:
        raise Blocked("git", f"git could not be started: {ending.error}", "Install git 2.25 or newer.")
    if ending.returncode != 0:
        lines = [line for line in output.splitlines() if line.strip()] or [f"git ended with {ending.returncode}"]
        words = re.sub(r"(\w+://)[^/@\s]*@", r"\1", lines[-1] if "fatal" in lines[-1] else " ".join(lines[-3:]))
        raise _unreachable(shown, f"git {arguments[0]}: {words}" if not ending.timed_out else "git took too long")
    return output


def git_environment(work: Path) -> dict[str, str]:
    """Return the caller's environment for git, without what would make it work on another repository or ask."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_") or "SSL" in name}
    return kept | {
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_LFS_SKIP_SMUDGE": "1",
        "GIT_CEILING_DIRECTORIES": str(work.parent),
        "LC_ALL": "C",
    }


def _is_repository(folder: Path) -> bool:
    return (folder / ".git").exists() or ((folder / "HEAD").is_file() and (folder / "objects").is_dir())


def _commit_of(folder: Path, folders: Sequence[str]) -> str | None:
    """Return the commit that a folder is a clean checkout of, or None."""
    if not (folder / ".git").exists():
        return None
    try:
        if _git(folder, str(folder), "status", "--porcelain", "--", *folders).strip():
            return None
        return _git(folder, str(folder), "rev-parse", "HEAD").strip()
    except Blocked:
        return None


def _write_read_only(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    path.chmod(stat.S_IRUSR | stat.S_IRGRP | stat.S_IROTH)


def _write_manifest(folder: Path, commit: str | None, blobs: dict[str, str]) -> None:
    storage.write(folder / "manifest.json", msgspec.json.encode(_Manifest(commit=commit, files=blobs)))


def _read_manifest(folder: Path) -> _Manifest | None:
    try:
        return msgspec.json.decode((folder / "manifest.json").read_bytes(), type=_Manifest)
    except (OSError, msgspec.DecodeError):
        return None


def _is_whole(folder: Path, blobs: Mapping[str, str]) -> bool:
    """Return whether the tree in ``folder`` has exactly these files with exactly this content."""
    tree = folder / "tree"
    if _read_manifest(folder) is None:
        return False
    try:
        found = {path.relative_to(tree).as_posix(): blob_id(path.read_bytes()) for path in _files_below(tree)}
    except OSError:
        return False
    return found == dict(blobs)
