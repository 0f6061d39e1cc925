"""Brings upstream's test tree of a pair into a pristine cache, and says which commit it is."""

from __future__ import annotations

import contextlib
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
from .errors import URL_USER, Blocked, without_secrets
from .matrix import COMMIT, Batch, Pair
from .scope import RunScope

SAMPLE = "sample"
SAMPLE_ROOT = Path(__file__).parent.parent / "tests" / "sample"
FETCH_SECONDS = 900.0
LIST_SECONDS = 60.0
CONNECT_SECONDS = 5.0
PORTS = {"http": 80, "https": 443, "git": 9418}
UNWANTED = {".git", "__pycache__"}
GLOB, ESCAPED = re.compile(r"[*?\[\]\\!#]"), r"\\\g<0>"
KEPT = re.compile(r"GIT_(SSL|SSH|PROXY|HTTP)\w*|GIT_ASKPASS|GIT_CONFIG_(GLOBAL|SYSTEM|NOSYSTEM)")
GIT_OPTIONS = (
    *("core.autocrlf=false", "core.hooksPath=/dev/null", "core.fsmonitor=false", "core.sparseCheckout=true"),
    *("submodule.recurse=false", "fetch.recurseSubmodules=false", "gc.auto=0", "maintenance.auto=false"),
    *("http.lowSpeedLimit=1000", "http.lowSpeedTime=30", "init.defaultRefFormat=files"),
)
SCP_LIKE = re.compile(r"[\w.-]+@[\w.-]+:(?!//)")


class Tree(msgspec.Struct, frozen=True, kw_only=True):
    """A pristine tree of a pair.

    ``source`` is where it came from, without credentials; ``commit`` is None where the source doesn't tell (a folder
    without git); ``blobs`` are git's blob ids by path; ``tried`` says why earlier sources were passed over, and
    why this one could not be asked again.
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


def fetch(
    batch: Batch, pair: Pair, sources: Sequence[str], base: Path, scope: RunScope, *, fresh: bool = False
) -> Tree:
    """Return the pair's tree from the first source that has it.

    ``sources``, relative to ``base``, overrides matrix.toml's unless it is empty. ``fresh`` asks a repository again
    where the tag of a pair is that has no pinned commit. Raises Blocked when no source has the tree, with the reason
    of each.
    """
    values = {"torch": pair.torch, "torch_npu": pair.torch_npu}
    tag = batch.matrix.upstream.tag.format(**values)
    files = [file.path for file in batch.matrix.test_file]
    failures: list[Blocked] = []
    for template in sources or batch.matrix.upstream.repository:
        try:
            tree = _fetch_one(template, values, tag, files, pair, base if sources else batch.root, scope, fresh=fresh)
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
        return msgspec.structs.replace(tree, tried=[*(failure.cause for failure in failures), *tree.tried])
    if len(failures) == 1:
        raise failures[0]
    raise Blocked(failures[-1].code, "; ".join(failure.cause for failure in failures), failures[-1].remedy)


def blob_id(data: bytes) -> str:
    """Return git's blob id of a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


# Helpers


def _fetch_one(
    template: str,
    values: Mapping[str, str],
    tag: str,
    files: Sequence[str],
    pair: Pair,
    base: Path,
    scope: RunScope,
    *,
    fresh: bool,
) -> Tree:
    folders = sorted({str(PurePosixPath(file).parent) for file in files})
    if template == SAMPLE:
        return _from_sample(pair, tag, folders)
    try:
        source = template.format(**values)
        # A port that isn't one is found out when it is asked for.
        urllib.parse.urlsplit(source).port  # noqa: B018
    except (KeyError, IndexError, ValueError, AttributeError) as error:
        raise Blocked(
            "upstream-source",
            f"'{without_secrets(template)}' is neither a git URL nor a folder template: {error}",
            "Use a URL, or a folder with {torch} and {torch_npu} as its only placeholders.",
        ) from None
    if "://" in source or SCP_LIKE.match(source):
        return _from_git(source, tag, folders, pair, scope, fresh=fresh)
    folder = storage.located(source, base).resolve()
    if not folder.is_dir():
        raise Blocked(
            "upstream-folder",
            f"there is no folder {folder} with upstream's tree",
            "Correct upstream.repository in matrix.toml or --upstream.",
        )
    if "{" not in template and _is_repository(folder):
        return _from_git(folder.as_uri(), tag, folders, pair, scope, fresh=fresh)
    contents = _read_folders([folder], folders)
    return _store(str(folder), tag, _commit_of(folder, folders, contents), contents)


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
        names[:] = sorted(set(names) - UNWANTED)
        for file in sorted(files):
            path = Path(parent, file)
            if path.is_file():
                yield path


def _store(source: str, tag: str, commit: str | None, contents: Mapping[str, bytes]) -> Tree:
    """Keep the content of a folder as a pristine tree, keyed by what is in it."""
    blobs = {name: blob_id(data) for name, data in sorted(contents.items())}
    key = storage.digest([source, commit, blobs])[:32]
    target = storage.cache_root() / "trees" / f"folder-{key}"
    with storage.lock(storage.cache_root() / "locks" / f"{target.name}.lock"):
        if not _is_whole(target, blobs):
            with storage.new_folder(target) as building:
                for name, data in contents.items():
                    _write_read_only(building / "tree" / name, data)
                _write_manifest(building, commit, blobs)
    return Tree(path=target / "tree", source=source, tag=tag, commit=commit, blobs=blobs)


def _from_git(url: str, tag: str, folders: Sequence[str], pair: Pair, scope: RunScope, *, fresh: bool) -> Tree:
    """Fetch a tag shallow, blobless and sparse; without network where the cache has it already."""
    fetch = _Fetch(url, tag, folders)
    cache = storage.cache_root()
    reference = cache / "refs" / fetch.name
    with storage.lock(cache / "locks" / f"git-{fetch.name}.lock"):
        known = _read_reference(reference)
        settled = pair.commit == known or (pair.commit is None and not fresh)
        if known and settled and (tree := fetch.cached(known)):
            return tree
        try:
            scope.once(f"reach {fetch.shown}", fetch.reach)
            if known and fetch.find() == known and (tree := fetch.cached(known)):
                return tree
            commit = fetch.clone()
        except Blocked as failure:
            # Upstream can't be asked whether the tag is elsewhere by now: what is known still holds.
            if known and (tree := fetch.cached(known)):
                return msgspec.structs.replace(tree, tried=[failure.cause])
            raise
        storage.write(reference, commit.encode())
        tree = fetch.cached(commit)
        if tree is None:
            raise Blocked(
                "cache",
                f"the tree of {fetch.shown} can't be read back from {cache}",
                "Check that disk and its free space.",
            )
        return tree


def _read_reference(path: Path) -> str | None:
    """Return the commit that a tag was at when it was fetched."""
    try:
        commit = path.read_bytes().decode(errors="replace").strip()
    except OSError:
        return None
    return commit if COMMIT.fullmatch(commit) else None


class _Fetch:
    """One tag of one repository, and the folders wanted of it."""

    def __init__(self, url: str, tag: str, folders: Sequence[str]) -> None:
        self.url = url
        self.tag = tag
        self.folders = folders
        self.shown = without_secrets(url)
        # A password changes more often than what it opens.
        self.source = _digest(URL_USER.sub("", url))[:16]
        self.wanted = _digest("\n".join(folders))[:8]
        # Pairs fetch side by side: what two of them write must have two names.
        self.name = f"{self.source}-{_digest(tag)[:16]}-{self.wanted}"

    def cached(self, commit: str) -> Tree | None:
        """Return the cached tree if every byte of it is as it was fetched."""
        with self._target(commit) as folder:
            manifest = _read_manifest(folder)
            if manifest is None or not _is_whole(folder, manifest.files):
                storage.remove(folder)
                return None
        return Tree(path=folder / "tree", source=self.shown, tag=self.tag, commit=commit, blobs=manifest.files)

    def reach(self) -> None:
        """Raise Blocked within seconds if nobody answers; git itself may wait for minutes."""
        if self.url.startswith("file:"):
            return
        with self._scratch() as work:
            # What git would really connect to: mirrors are often set up in its configuration.
            url = self._git(work, "ls-remote", "--get-url", self.url).strip()
            parts = urllib.parse.urlsplit(url)
            # Of ssh, only ssh itself knows the aliases and jump hosts.
            if parts.scheme not in PORTS or not parts.hostname or self._has_proxy(work, url):
                return
            try:
                address = parts.hostname, parts.port or PORTS[parts.scheme]
                socket.create_connection(address, CONNECT_SECONDS).close()
            except OSError as error:
                raise self._unreachable(str(error.strerror or error)) from None

    def find(self) -> str:
        """Return the commit that the tag is at by now, or an empty string."""
        name = f"refs/tags/{self.tag}"
        peeled = f"{name}^{{}}"  # the commit of an annotated tag
        lines = self._git(storage.cache_root(), "ls-remote", "-q", self.url, name, peeled).splitlines()
        # Git lists whatever ends like that.
        commits = {found: commit for commit, _, found in (line.partition("\t") for line in lines)}
        return commits.get(peeled) or commits.get(name, "")

    def clone(self) -> str:
        """Fetch the tag into the cache and return its commit."""
        with self._scratch() as work:
            self._git(work, "init", "-q", "--template=", ".")
            information = work / ".git" / "info"
            information.mkdir()
            # What is tested is what upstream's blobs hold, byte by byte, whatever attributes it or this user has.
            (information / "attributes").write_text("* -text -ident -filter -working-tree-encoding\n")
            patterns = [f"/{GLOB.sub(ESCAPED, folder)}/\n" if folder != "." else "/*\n" for folder in self.folders]
            (information / "sparse-checkout").write_text("".join(patterns), encoding="utf-8")
            self._git(work, "remote", "add", "origin", self.url)
            try:
                wanted = ("--depth=1", "--filter=blob:none", "--no-tags", "origin", f"refs/tags/{self.tag}")
                self._git(work, "fetch", "-q", *wanted)
            except Blocked as failure:
                if "couldn't find remote ref" in failure.cause:
                    raise Blocked(
                        "upstream-tag",
                        f"{self.shown} has no tag {self.tag}",
                        "Correct upstream.tag or the pair's torch version.",
                    ) from None
                raise
            self._git(work, "checkout", "-q", "--detach", "FETCH_HEAD")
            commit = (work / ".git" / "HEAD").read_text().strip()
            blobs = _blobs(self._git(work, "ls-tree", "-r", "-z", "HEAD", "--", *self.folders))
            with self._target(commit) as folder, storage.new_folder(folder) as building:
                for name in blobs:
                    _write_read_only(building / "tree" / name, (work / name).read_bytes())
                _write_manifest(building, commit, blobs)
        return commit

    @contextlib.contextmanager
    def _target(self, commit: str) -> Iterator[Path]:
        """Yield the folder of a commit's tree in the cache, which is ours meanwhile: two tags may be one commit."""
        cache = storage.cache_root()
        name = f"git-{self.source}-{commit}-{self.wanted}"
        with storage.lock(cache / "locks" / f"{name}.lock"):
            yield cache / "trees" / name

    def _scratch(self) -> contextlib.AbstractContextManager[Path]:
        return storage.scratch_folder(storage.cache_root() / "fetch", f"{self.name}-")

    def _has_proxy(self, work: Path, url: str) -> bool:
        scheme = url.partition("://")[0]
        if any(
            os.environ.get(name) for name in (f"{scheme}_proxy", f"{scheme.upper()}_PROXY", "all_proxy", "ALL_PROXY")
        ):
            return True
        ending, output = run_git(work, "config", "--get-urlmatch", "http.proxy", url)
        return ending.returncode == 0 and bool(output.strip())

    def _git(self, work: Path, *arguments: str) -> str:
        """Run git in ``work``; raises Blocked with git's own words, credentials taken out."""
        ending, output = run_git(work, *arguments)
        if ending.returncode == 0:
            return output
        if ending.error:
            raise Blocked("git", f"git could not be started: {ending.error}", "Install git 2.25 or newer.")
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        first = next((number for number, line in enumerate(lines) if line.startswith(("fatal:", "error:"))), 0)
        words = " ".join(lines[first:])[:500] or f"it ended with {ending.returncode}"
        if "No space left on device" in words:
            raise Blocked("disk-full", f"the disk is full: {words}", "Free some space where the cache lies.")
        why = "git took too long" if ending.timed_out else f"git {arguments[0]}: {without_secrets(words)}"
        if arguments[0] in ("fetch", "checkout", "ls-remote"):
            raise self._unreachable(why)
        raise Blocked("git", f"{self.shown}: {why}", "Mend what git says, then run this again.")

    def _unreachable(self, why: str) -> Blocked:
        return Blocked(
            "upstream-unreachable",
            f"{self.shown} does not answer: {why}",
            "Check the network, or name a mirror or a folder with --upstream or upstream.repository in matrix.toml.",
        )


def run_git(work: Path, *arguments: str) -> tuple[process.Ending, str]:
    """Run git in ``work``, where nothing that the caller or the user has set makes it do or ask something else."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_") or KEPT.fullmatch(name)}
    env = kept | {
        "GIT_CEILING_DIRECTORIES": str(work.parent),
        "GIT_DEFAULT_HASH": "sha1",
        "GIT_LFS_SKIP_SMUDGE": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C",
    }
    argv = ["git", *(part for option in GIT_OPTIONS for part in ("-c", option)), *arguments]
    limit = LIST_SECONDS if arguments[0] == "ls-remote" else FETCH_SECONDS
    return process.capture(argv, cwd=work, env=env, limit=limit)


def _blobs(listing: str) -> dict[str, str]:
    """Return blob ids by path from what ``git ls-tree -z`` says; links and submodules are left out."""
    found = {}
    for entry in listing.split("\0"):
        about, _, name = entry.partition("\t")
        if about.startswith("100") and not UNWANTED & set(name.split("/")):
            found[name] = about.split()[2]
    return found


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _is_repository(folder: Path) -> bool:
    return (folder / ".git").exists() or ((folder / "HEAD").is_file() and (folder / "objects").is_dir())


def _commit_of(folder: Path, folders: Sequence[str], contents: Mapping[str, bytes]) -> str | None:
    """Return the commit that a folder is a checkout of, if the contents are that commit's to the byte."""
    if not (folder / ".git").exists():
        return None
    outputs = []
    for arguments in (["rev-parse", "HEAD"], ["ls-tree", "-r", "-z", "HEAD", "--", *folders]):
        ending, output = run_git(folder, *arguments)
        if ending.returncode != 0:
            return None
        outputs.append(output)
    blobs = {name: blob_id(data) for name, data in contents.items()}
    return outputs[0].strip() if _blobs(outputs[1]) == blobs else None


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
