"""Says what Ascend/pytorch's docs state of the APIs of the batch, on the page of a pair's version."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
from packaging.version import Version

from . import docpage, storage
from .docpage import Support
from .errors import URL_USER, Blocked, without_secrets
from .matrix import COMMIT, Batch, Docs, Pair
from .scope import RunScope
from .upstream import ESCAPED, GLOB, SCP_LIKE, run_git

PAGE_BYTES = 4 << 20
FIRST = "HEAD"  # what a repository has checked out where no branch is named
HEADS = "refs/heads/*"
DASHED = r"\d+(?:-\d+)+"
DOTTED = r"\d+(?:\.\d+)+"
REMEDY = "Check the network, or name a mirror or a folder in docs.repository of matrix.toml."


class DocsEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What the page says of an API: ``place`` is file and line, ``words`` are the page's own.

    ``hardware`` is yes or no for each that is named.
    """

    name: str
    support: Support
    hardware: dict[str, bool] = {}
    place: str = ""
    words: str = ""


class DocsFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the docs state of a pair's APIs, and which page that is.

    ``stands_in`` is the older version whose page was taken because the pair's has none. ``code``, ``cause`` and
    ``remedy`` say why nothing could be looked up; ``tried`` what was passed over before.
    """

    entries: list[DocsEntry] = []
    source: str = ""
    branch: str = ""
    commit: str | None = None
    file: str = ""
    stands_in: str = ""
    tried: list[str] = []
    code: str = ""
    cause: str = ""
    remedy: str = ""


class _Place(msgspec.Struct, frozen=True, kw_only=True):
    """A folder with pages in it, and what is told of where they come from."""

    root: Path
    source: str
    branch: str = ""
    commit: str | None = None


def check(batch: Batch, pair: Pair, scope: RunScope) -> DocsFacts | None:
    """Return what the docs state, or None for a batch that names none.

    Raises nothing: what fails is told in the facts, and blocks nothing else.
    """
    docs = batch.matrix.docs
    if docs is None:
        return None
    names = [api.name for api in batch.matrix.api]
    search = _Search(batch, docs, pair, scope)
    try:
        found = search.page()
    except OSError as error:
        search.failures.append(Blocked("docs-folder", f"{type(error).__name__}: {error}", REMEDY))
        found = None
    tried = [*search.tried, *(failure.cause for failure in search.failures)]
    if found is not None:
        place, file, version, text = found
        statements = docpage.read(text, names)
        return DocsFacts(
            entries=[_entry(name, statement, file) for name, statement in statements.items()],
            source=place.source,
            branch=place.branch,
            commit=place.commit,
            file=file,
            stands_in="" if version == pair.torch else version,
            tried=tried,
        )
    if search.failures:
        # The page may be where nobody answers: that it is nowhere can't be said.
        last = search.failures[-1]
        causes = "; ".join(dict.fromkeys(failure.cause for failure in search.failures))
        return DocsFacts(code=last.code, cause=causes, remedy=last.remedy, tried=search.tried)
    return DocsFacts(entries=[DocsEntry(name=name, support=Support.NO_FILE) for name in names], tried=tried)


# Helpers


def _entry(name: str, statement: docpage.Statement, file: str) -> DocsEntry:
    return DocsEntry(
        name=name,
        support=statement.support,
        hardware=statement.hardware,
        place=f"{file}:{statement.line}" if statement.line else file,
        words=statement.words,
    )


class _Search:
    """Looks for the page of a pair; ``tried`` says what was passed over, ``failures`` what could not be looked at."""

    def __init__(self, batch: Batch, docs: Docs, pair: Pair, scope: RunScope) -> None:
        self.batch = batch
        self.docs = docs
        self.pair = pair
        self.scope = scope
        dashed = pair.torch.replace(".", "-")
        self.values = {"torch": pair.torch, "torch_npu": pair.torch_npu, "torch_dashed": dashed}
        self.tried: list[str] = []
        self.failures: list[Blocked] = []

    def page(self) -> tuple[_Place, str, str, str] | None:
        """Return where the first page that fits is, its path, the version that it is for, and its text."""
        places = []
        for place in self._places():
            for template in self.docs.path:
                file = template.format(**self.values, page=self.docs.page)
                if (text := _read(place.root, file)) is not None:
                    return place, file, self.pair.torch, text
            at = f"{place.source}, {place.branch}" if place.branch else place.source
            self.tried.append(f"{at}: no page for {self.pair.torch}")
            places.append(place)
        older = [each for place in places for each in self._older(place)] if self.docs.nearest else []
        if not older:
            return None
        place, file, version = max(older, key=lambda each: Version(each[2]))
        text = _read(place.root, file)
        return None if text is None else (place, file, version, text)

    def _places(self) -> Iterator[_Place]:
        for template in self.docs.repository:
            source = template.format(**self.values)
            if "://" in source or SCP_LIKE.match(source):
                for branch in dict.fromkeys(name.format(**self.values) for name in self.docs.branch or [FIRST]):
                    yield from self._from_git(source, branch)
                continue
            folder = storage.located(source, self.batch.root).resolve()
            if folder.is_dir():
                yield _Place(root=folder, source=str(folder))
            else:
                cause = f"there is no folder {folder} with docs"
                self.failures.append(Blocked("docs-folder", cause, "Correct docs.repository in matrix.toml."))

    def _from_git(self, url: str, branch: str) -> Iterator[_Place]:
        try:
            pages = _Pages(url, branch, self.docs)
            place, failure = pages.fetched(self.scope)
        except Blocked as blocked:
            self.failures.append(blocked)
            return
        if failure:
            self.tried.append(f"{failure.cause}; what was fetched before is used")
        if place is None:
            self.tried.append(f"{pages.shown}: no branch {branch}")
        else:
            yield place

    def _older(self, place: _Place) -> Iterator[tuple[_Place, str, str]]:
        """Yield the pages of versions before the pair's: where, path, version."""
        for template in self.docs.path:
            everywhere = template.format(**dict.fromkeys(self.values, "\0"), page=self.docs.page)
            pattern = _pattern(template, self.docs.page)
            for path in place.root.glob(glob.escape(everywhere).replace("\0", "*")):
                file = path.relative_to(place.root).as_posix()
                match = pattern.fullmatch(file)
                version = match.groupdict().get("dotted") or match.groupdict().get("dashed") if match else None
                if version and Version(version.replace("-", ".")) < self.pair.version:
                    yield place, file, version.replace("-", ".")


class _Pages:
    """The pages of all versions in one branch of a git repository, in a cache that all pairs share."""

    def __init__(self, url: str, branch: str, docs: Docs) -> None:
        self.url = url
        self.branch = branch
        self.shown = without_secrets(url)
        self.reference = branch if branch == FIRST else f"refs/heads/{branch}"
        self.patterns = [_pattern(template, docs.page) for template in docs.path]
        # A password changes more often than what it opens.
        repository = URL_USER.sub("", url)
        self.source = _name(repository)
        self.name = _name(repository, branch, docs.path, docs.page)

    def fetched(self, scope: RunScope) -> tuple[_Place | None, Blocked | None]:
        """Return the pages, and why they are those of an earlier run if they are; None without such a branch.

        The repository is asked once per run where its branches are, and for no more if they have not moved. Raises
        Blocked if the pages can't be had.
        """
        cache = storage.cache_root()
        target, listing = cache / "docs" / self.name, cache / "docs" / f"{self.source}.refs"
        failure = None
        with storage.lock(cache / "locks" / f"docs-{self.name}.lock"):
            known = _commit(target)
            try:
                # Nobody who does not answer is waited for again, whichever branch is next.
                scope.once(f"docs of {self.shown}", lambda: self._list(listing))
                newest = _commits(listing).get(self.reference)
                if newest not in (None, known):
                    scope.once(f"docs {self.name}", lambda: self._fetch(target))
            except Blocked as blocked:
                if not known:
                    raise
                failure, newest = blocked, known
            commit = _commit(target)
        branch = "" if self.branch == FIRST else self.branch
        place = _Place(root=target / "pages", source=self.shown, branch=branch, commit=commit)
        return (place if newest and commit else None), failure

    def _list(self, listing: Path) -> None:
        storage.write(listing, self._git(storage.cache_root(), "ls-remote", "-q", self.url, FIRST, HEADS).encode())

    def _fetch(self, target: Path) -> None:
        with (
            storage.scratch_folder(storage.cache_root() / "fetch", f"docs-{self.name}-") as work,
            storage.new_folder(target) as building,
        ):
            self._git(work, "init", "-q", "--template=", ".")
            self._git(work, "remote", "add", "origin", self.url)
            wanted = ("--depth=1", "--filter=blob:none", "--no-tags", "origin", self.reference)
            self._git(work, "fetch", "-q", *wanted)
            listing = self._git(work, "ls-tree", "-r", "-z", "--name-only", "FETCH_HEAD").split("\0")
            files = [name for name in listing if any(pattern.fullmatch(name) for pattern in self.patterns)]
            sparse = "".join(f"/{GLOB.sub(ESCAPED, name)}\n" for name in files)
            (work / ".git" / "info").mkdir(exist_ok=True)
            (work / ".git" / "info" / "sparse-checkout").write_text(sparse, encoding="utf-8")
            if files:
                self._git(work, "checkout", "-q", "--detach", "FETCH_HEAD")
            for name in files:
                if (text := _read(work, name)) is not None:
                    storage.write(building / "pages" / name, text.encode())
            (building / "pages").mkdir(exist_ok=True)
            storage.write(building / "commit", self._git(work, "rev-parse", "FETCH_HEAD").encode())

    def _git(self, work: Path, *arguments: str) -> str:
        ending, output = run_git(work, *arguments)
        if ending.returncode == 0:
            return output
        words = ending.error or " ".join(output.split())[-500:] or f"it ended with {ending.returncode}"
        why = "git took too long" if ending.timed_out else f"git {arguments[0]}: {without_secrets(words)}"
        raise Blocked("docs-unreachable", f"{self.shown} gives no docs: {why}", REMEDY)


def _name(*about: object) -> str:
    return storage.digest(about)[:32]


def _commit(folder: Path) -> str | None:
    """Return the commit whose pages lie in ``folder``."""
    try:
        commit = (folder / "commit").read_bytes().decode(errors="replace").strip()
    except OSError:
        return None
    return commit if COMMIT.fullmatch(commit) else None


def _commits(listing: Path) -> dict[str, str]:
    """Return the commit of each branch, by reference, from what ``git ls-remote`` said."""
    try:
        lines = listing.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    return {name: commit for commit, _, name in (line.partition("\t") for line in lines)}


def _pattern(template: str, page: str) -> re.Pattern[str]:
    """Return what the paths of a template look like, for whatever version."""
    groups = {"torch_dashed": ("dashed", DASHED), "torch": ("dotted", DOTTED), "torch_npu": ("", "[^/]+")}
    parts = re.split(r"\{(\w+)\}", template.replace("{{", "\0").replace("}}", "\1"))
    pattern, seen = "", set()
    for number, part in enumerate(parts):
        if number % 2 == 0:
            pattern += re.escape(part.replace("\0", "{").replace("\1", "}"))
        elif part == "page":
            pattern += re.escape(page)
        else:
            name, expression = groups[part]
            again = f"(?P={name})" if name in seen else f"(?P<{name}>{expression})" if name else expression
            pattern += again
            seen.add(name)
    return re.compile(pattern)


def _read(root: Path, file: str) -> str | None:
    """Return a page below ``root``, or None; a link may not lead elsewhere."""
    path = (root / file).resolve()
    if not path.is_relative_to(root.resolve()) or not path.is_file():
        return None
    with path.open("rb") as stream:
        return stream.read(PAGE_BYTES).decode(errors="replace")
