"""Makes the worktree of a pair: its tree with the patches of the batch, proven to restore tests and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from .errors import Blocked
from .matrix import Batch, Pair
from .proof import prove
from .upstream import Tree, blob_id

LINE = re.compile(rb"[^\n]*\n|[^\n]+")
HUNK = re.compile(rb"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@(?: |\r?$)")
INDEX = re.compile(rb"index ([0-9a-f]{7,64})\.\.([0-9a-f]{7,64})( \d+)?")
LINE_CHARACTERS = 80
CAUSE_CHARACTERS = 2000
REMEDIES = {
    "patch-missing": "Put it there, or take the patch out of matrix.toml.",
    "patch-empty": "Make it with git diff, or take the patch out of matrix.toml.",
    "patch-kind": "Make it with git diff, as an edit of lines and nothing else.",
    "patch-path": "Give each test file a patch of its own, with the paths that git diff writes.",
    "patch-hunk": "Make it anew with git diff; a patch is not edited by hand.",
    "patch-endings": "Make it from that very file; neither git (core.autocrlf) nor an editor may change its endings.",
    "patch-stale": "Make it anew against this version of the file.",
    "patch-result": "Make it anew with git diff; it was changed after it was made.",
    "patch-changes-tests": "Let it take out guards, and imports that only they need, and nothing else.",
}


class PatchRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A patch as it was applied: git's blob ids of the test file before and after, and what the patch was made for."""

    file: str
    patch: str
    made_for: str | None
    before: str
    after: str
    already_applied: bool
    diff: str

    @property
    def fits(self) -> bool:
        """Whether the file is the very one that the patch was made against."""
        return self.made_for is not None and self.before.startswith(self.made_for)


class Hunk(msgspec.Struct, frozen=True, kw_only=True):
    """One hunk: line numbers from 1 and the lines before and after, each with its line ending."""

    number: int
    start: int
    old: list[bytes]
    new: list[bytes]
    new_start: int


class ParsedPatch(msgspec.Struct, frozen=True, kw_only=True):
    """A patch of one file; ``before`` and ``after`` are the (abbreviated) blob ids of its index line."""

    hunks: list[Hunk]
    before: str | None
    after: str | None


class Worktree(msgspec.Struct, frozen=True, kw_only=True):
    """What the tests shall run in: every file of the tree, patched; it is written anew for each run."""

    files: dict[str, bytes]
    patches: dict[str, PatchRecord]

    def write(self, folder: Path) -> None:
        """Lay the worktree out in ``folder``."""
        for name, data in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    def blob(self, file: str) -> str:
        """Return git's blob id of a file of this worktree."""
        return blob_id(self.files[file])


def prepare(batch: Batch, pair: Pair, tree: Tree) -> Worktree:
    """Return the pair's worktree: its tree with every patch of the batch, each checked before the first is applied.

    Raises Blocked when a patch doesn't fit to the letter, touches another file, or changes anything but guards and
    imports. The tree itself is only read.
    """
    files = {name: (tree.path / name).read_bytes() for name in tree.blobs}
    records = {}
    for file, path in batch.patches(pair).items():
        name = path.relative_to(batch.root).as_posix()
        try:
            data = path.read_bytes()
        except OSError as error:
            raise _refused("patch-missing", name, f"can't be read: {error.strerror}") from None
        files[file], records[file] = apply(files[file], data, file=file, name=name)
    return Worktree(files=files, patches=records)


def apply(before: bytes, patch: bytes, *, file: str, name: str) -> tuple[bytes, PatchRecord]:
    """Return the content of ``file`` with ``patch`` (called ``name`` in messages) in it, and the record of that.

    Raises Blocked like prepare.
    """
    parsed = parse(patch, file, name)
    after, already = _apply(parsed, before, file, name)
    original = _undo(parsed, before) if already else before
    made_for_it = parsed.before and blob_id(original).startswith(parsed.before)
    # The very file that the patch was made against: then the result is known as well.
    if made_for_it and parsed.after and not blob_id(after).startswith(parsed.after):
        raise _refused("patch-result", name, f"gives blob {blob_id(after)}, its index line promises {parsed.after}")
    problems = prove(original, after)
    if problems:
        raise _refused("patch-changes-tests", name, "; ".join(problems))
    return after, PatchRecord(
        file=file,
        patch=name,
        made_for=parsed.before,
        before=blob_id(original),
        after=blob_id(after),
        already_applied=already,
        diff=patch.decode(errors="replace"),
    )


def parse(data: bytes, file: str, name: str) -> ParsedPatch:
    """Read a unified diff that changes exactly ``file``; raises Blocked with the cause otherwise."""
    if not data.strip():
        raise _refused("patch-empty", name, "is empty")
    if not data.endswith(b"\n"):
        raise _refused("patch-hunk", name, "is cut off: its last line has no end")
    lines = LINE.findall(data)
    before, after, position = _read_header(lines, file, name)
    hunks: list[Hunk] = []
    while position < len(lines) and (match := HUNK.match(lines[position])):
        hunk, position = _read_hunk(lines, position, match, hunks, name)
        hunks.append(hunk)
    _check_rest(lines, position, hunks, file, name)
    if all(hunk.old == hunk.new for hunk in hunks):
        raise _refused("patch-empty", name, f"changes no line of {file}")
    return ParsedPatch(hunks=hunks, before=before, after=after)


# Helpers


def _refused(code: str, name: str, why: str) -> Blocked:
    words = "".join(character if character.isprintable() else ascii(character)[1:-1] for character in f"{name} {why}")
    return Blocked(code, words[:CAUSE_CHARACTERS], REMEDIES[code])


def _text(line: bytes) -> str:
    return line.rstrip(b"\r\n").decode(errors="replace")


def _shown(line: bytes) -> str:
    text = line.removesuffix(b"\n")[:LINE_CHARACTERS].decode(errors="replace")
    return f"'{text}'"


def _read_header(lines: list[bytes], file: str, name: str) -> tuple[str | None, str | None, int]:
    """Return the blob ids of the index line, where there is one, and the position of the first hunk."""
    before = after = None
    by_git = False
    for position, (line, following) in enumerate(zip(lines, [*lines[1:], b""], strict=True)):
        text = _text(line)
        if line.startswith(b"--- ") and following.startswith(b"+++ "):
            _check_paths(text, _text(following), file, name)
            return before, after, position + 2
        if line.startswith(b"diff --git "):
            if by_git or text != f"diff --git a/{file} b/{file}":
                raise _refused("patch-path", name, f"is for '{text[11:]}' too or instead, expected {file} alone")
            by_git = True
        elif by_git:
            match = INDEX.fullmatch(line.rstrip(b"\r\n"))
            if not match:
                raise _refused("patch-kind", name, f"says '{text}': it may only edit lines of {file}")
            before, after = match[1].decode(), match[2].decode()
    raise _refused("patch-empty", name, f"has no change of {file} in it")


def _check_paths(old: str, new: str, file: str, name: str) -> None:
    for line, prefix in ((old, "a/"), (new, "b/")):
        path = line[4:].partition("\t")[0]
        if path == "/dev/null":
            raise _refused("patch-kind", name, f"adds or deletes {file}: it may only edit its lines")
        if path.startswith("/") or ".." in path.split("/"):
            raise _refused("patch-path", name, f"names '{path}', which leaves the tree")
        if path != prefix + file:
            raise _refused("patch-path", name, f"touches '{path}', expected {prefix}{file}")


def _read_hunk(
    lines: list[bytes], position: int, match: re.Match[bytes], earlier: list[Hunk], name: str
) -> tuple[Hunk, int]:
    """Read the hunk whose header is at ``position``; returns it and the position after it."""
    start, old_count, new_start, new_count = (1 if number is None else int(number) for number in match.groups())
    where = f"hunk {len(earlier) + 1}"
    if old_count == 0:
        raise _refused("patch-hunk", name, f"{where} has no line of the file in it that says where it belongs")
    old: list[bytes] = []
    new: list[bytes] = []
    sides = {b" ": (old, new), b"-": (old,), b"+": (new,)}
    position += 1
    while (len(old) < old_count or len(new) < new_count) and position < len(lines):
        line = lines[position]
        if line in (b"\n", b"\r\n"):
            line = b" " + line  # mail software drops the space of an empty line
        if line[:1] not in sides:
            break
        for side in sides[line[:1]]:
            side.append(line[1:])
        position += 1
        if position < len(lines) and lines[position].startswith(b"\\"):
            # "\ No newline at end of file" speaks of the line before it.
            for side in sides[line[:1]]:
                side[-1] = side[-1].removesuffix(b"\n")
            position += 1
    if (len(old), len(new)) != (old_count, new_count):
        counts = f"{len(old)} old and {len(new)} new lines, its header says {old_count} and {new_count}"
        raise _refused("patch-hunk", name, f"{where} has {counts}")
    least = earlier[-1].start + len(earlier[-1].old) if earlier else 1
    if start < least:
        raise _refused("patch-hunk", name, f"{where} starts at line {start}, expected line {least} or a later one")
    shift = sum(len(hunk.new) - len(hunk.old) for hunk in earlier)
    if new_start != start + shift - (new_count == 0):
        raise _refused("patch-hunk", name, f"{where} goes to line {new_start}, but those before it make that another")
    return Hunk(number=len(earlier) + 1, start=start, new_start=start + shift, old=old, new=new), position


def _check_rest(lines: list[bytes], position: int, hunks: list[Hunk], file: str, name: str) -> None:
    """Check that nothing but the signature of git format-patch stands behind the last hunk."""
    signed = False
    for number, line in enumerate(lines[position:], position + 1):
        if line.startswith((b"diff --git ", b"--- ", b"+++ ")):
            raise _refused("patch-path", name, f"touches a second file in line {number}, expected {file} alone")
        signed = signed or line.rstrip() == b"--"
        if HUNK.match(line) or not (signed or not line.strip()):
            what = f"belongs to no hunk; hunk {len(hunks)} ends before it" if hunks else "is no hunk"
            raise _refused("patch-hunk", name, f"has {_shown(line)} in line {number}, which {what}")
    if not hunks:
        raise _refused("patch-empty", name, f"has no hunk for {file}")


def _apply(parsed: ParsedPatch, before: bytes, file: str, name: str) -> tuple[bytes, bool]:
    """Return the file with the patch in it, and whether it was there already."""
    lines = LINE.findall(before)
    done = [bool(hunk.new) and lines[hunk.new_start - 1 :][: len(hunk.new)] == hunk.new for hunk in parsed.hunks]
    stale = [hunk for hunk in parsed.hunks if lines[hunk.start - 1 :][: len(hunk.old)] != hunk.old]
    # Where lines repeat, both sides of a hunk may fit: the blob id knows better.
    if all(done) and (stale or (parsed.after and blob_id(before).startswith(parsed.after))):
        return before, True
    if stale:
        there = [hunk for hunk, is_there in zip(parsed.hunks, done, strict=True) if is_there]
        unfit = [hunk for hunk in stale if hunk not in there]
        code, why = _why_not(lines, unfit[0]) if unfit else ("patch-stale", "another is not")
        why = "; ".join([*(f"hunk {hunk.number} is in it already" for hunk in there), why])
        expected = f"expected blob {parsed.before}" if parsed.before else "the patch names no blob"
        raise _refused(code, name, f"does not fit {file}: {why}; {expected}, found {blob_id(before)}")
    for hunk in reversed(parsed.hunks):
        lines[hunk.start - 1 : hunk.start - 1 + len(hunk.old)] = hunk.new
    if any(not line.endswith(b"\n") for line in lines[:-1]):
        raise _refused("patch-hunk", name, f"ends {file} without a newline where it goes on")
    return b"".join(lines), False


def _undo(parsed: ParsedPatch, after: bytes) -> bytes:
    lines = LINE.findall(after)
    for hunk in reversed(parsed.hunks):
        lines[hunk.new_start - 1 : hunk.new_start - 1 + len(hunk.new)] = hunk.old
    return b"".join(lines)


def _why_not(lines: list[bytes], hunk: Hunk) -> tuple[str, str]:
    """Return the code and the words for a hunk that doesn't fit."""
    for side, start in ((hunk.old, hunk.start), (hunk.new, hunk.new_start)):
        there = lines[start - 1 :][: len(side)]
        if side and [line.rstrip(b"\r\n") for line in side] == [line.rstrip(b"\r\n") for line in there]:
            ours, theirs = next((ours, theirs) for ours, theirs in zip(side, there, strict=True) if ours != theirs)
            words = f"line endings differ, {_ending(ours)} in the patch and {_ending(theirs)} in the file"
            return "patch-endings", f"hunk {hunk.number}: {words}"
    there = lines[hunk.start - 1 :][: len(hunk.old)]
    for number, (ours, theirs) in enumerate(zip(hunk.old, there, strict=False), hunk.start):
        if ours != theirs:
            return "patch-stale", f"hunk {hunk.number}: line {number} should be {_shown(ours)}, it is {_shown(theirs)}"
    return "patch-stale", f"hunk {hunk.number}: the file ends before line {hunk.start + len(hunk.old) - 1}"


def _ending(line: bytes) -> str:
    return "CRLF" if line.endswith(b"\r\n") else "LF" if line.endswith(b"\n") else "none"
