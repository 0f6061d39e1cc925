"""Makes the worktree of a pair: its tree with the patches of the batch, proven to restore tests and nothing else."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec

from .errors import Blocked
from .matrix import Batch, Pair
from .upstream import Tree, blob_id

HUNK = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
# What a guard may be written with: no assignment, no lambda, no comprehension.
GUARD_PARTS = (
    *(
        ast.BoolOp,
        ast.UnaryOp,
        ast.Compare,
        ast.Name,
        ast.Attribute,
        ast.Constant,
        ast.Call,
        ast.Tuple,
        ast.List,
        ast.Set,
    ),
    *(ast.expr_context, ast.boolop, ast.unaryop, ast.cmpop),
)
INDEX = re.compile(rb"index ([0-9a-f]{7,64})\.\.([0-9a-f]{7,64})( \d+)?")


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
    lines = data.splitlines(keepends=True)
    hunks: list[Hunk] = []
    index: tuple[str | None, str | None] = (None, None)
    headers = 0
    position = 0
    while position < len(lines):
        line = lines[position].rstrip(b"\r\n")
        if line.startswith(b"--- ") and position + 1 < len(lines) and lines[position + 1].startswith(b"+++ "):
            headers += 1
            _check_paths(line, lines[position + 1].rstrip(b"\r\n"), file, name)
            position += 2
        elif match := HUNK.match(line):
            hunk, position = _read_hunk(lines, position, match, len(hunks) + 1, name)
            hunks.append(hunk)
        elif line.startswith(
            (b"rename ", b"copy ", b"new file", b"deleted file", b"old mode", b"Binary", b"GIT binary")
        ):
            raise _refused("patch-kind", name, f"'{line.decode(errors='replace')}': a patch may only edit lines")
        else:
            if match := INDEX.fullmatch(line):
                index = (match[1].decode(), match[2].decode())
            elif line.startswith(b"diff --git ") and line.decode(errors="replace") != f"diff --git a/{file} b/{file}":
                raise _refused("patch-path", name, f"is for '{line[11:].decode(errors='replace')}', expected {file}")
            position += 1
    if not hunks:
        raise _refused("patch-empty", name, "has no hunk")
    if headers != 1:
        raise _refused("patch-path", name, f"has {headers} file headers, expected one, for {file}")
    return ParsedPatch(hunks=hunks, before=index[0], after=index[1])


def prove(before: bytes, after: bytes) -> list[str]:
    """Return what a patch does beyond lifting guards: nothing, if it only restores tests.

    Every class and function that was there still is, with the same body, bases and decorators, and none is new; an
    import may only lose names; a guard (an ``if`` test, or a flag that one uses) may only lose operands; every other
    statement is the same.
    """
    try:
        old, new = ast.parse(before), ast.parse(after)
    except (SyntaxError, ValueError) as error:
        return [f"leaves a file that Python can't parse: {error}"]
    problems: list[str] = []
    definitions = [Counter(_definitions(tree)) for tree in (old, new)]
    changed = dict.fromkeys(what for what, _ in definitions[0] - definitions[1])
    added = dict.fromkeys(what for what, _ in definitions[1] - definitions[0] if what not in changed)
    if changed or added:
        return [*(f"removes or changes {what}" for what in changed), *(f"adds {what}" for what in added)]

    flags = _flags(old) | _flags(new)
    kinds = [_statements(tree, flags) for tree in (old, new)]
    gone = kinds[0].others - kinds[1].others
    new_ones = kinds[1].others - kinds[0].others
    problems += [f"removes the statement '{text}'" for text in gone]
    problems += [f"adds the statement '{text}'" for text in new_ones]
    problems += [f"adds the import of {name}" for name in sorted(kinds[1].imports - kinds[0].imports)]
    problems += [f"brings '{text}' into a guard" for text in sorted(kinds[1].operands - kinds[0].operands)]
    if kinds[1].flags - kinds[0].flags:
        problems.append(f"adds the flag {', '.join(sorted(kinds[1].flags - kinds[0].flags))}")
    return problems


# Helpers


def _refused(code: str, name: str, why: str) -> Blocked:
    return Blocked(
        code, f"{name} {why}", "Make the patch anew against this version of the file, guards and imports only."
    )


def _check_paths(old: bytes, new: bytes, file: str, name: str) -> None:
    for line, prefix in ((old, "a/"), (new, "b/")):
        path = line[4:].split(b"\t")[0].decode(errors="replace")
        if path.startswith("/") or ".." in path.split("/"):
            raise _refused("patch-path", name, f"names '{path}', which leaves the tree")
        if path != prefix + file:
            raise _refused("patch-path", name, f"touches '{path}', expected {prefix}{file}")


def _read_hunk(lines: list[bytes], position: int, match: re.Match[bytes], number: int, name: str) -> tuple[Hunk, int]:
    """Read the hunk whose header is at ``position``; returns it and the position after it."""
    old_count, new_count = (1 if match[group] is None else int(match[group]) for group in (2, 4))
    old: list[bytes] = []
    new: list[bytes] = []
    position += 1
    while (len(old) < old_count or len(new) < new_count) and position < len(lines):
        line = lines[position]
        kind, text = line[:1], line[1:]
        if kind == b" " or line in (b"\n", b"\r\n"):
            text = text if kind == b" " else line
            old.append(text)
            new.append(text)
        elif kind == b"-":
            old.append(text)
        elif kind == b"+":
            new.append(text)
        elif kind != b"\\":
            break
        position += 1
    if (len(old), len(new)) != (old_count, new_count):
        raise _refused("patch-hunk", name, f"hunk {number}: {len(old)} and {len(new)} lines, its header says otherwise")
    if position < len(lines) and lines[position].startswith(b"\\"):
        # "\ No newline at end of file" speaks of the line before it.
        for side in (old, new):
            side[-1:] = [side[-1].rstrip(b"\r\n")] if side else []
        position += 1
    return Hunk(number=number, start=int(match[1]), new_start=int(match[3]), old=old, new=new), position


def _apply(parsed: ParsedPatch, before: bytes, file: str, name: str) -> tuple[bytes, bool]:
    """Return the file with the patch in it, and whether it was there already."""
    lines = before.splitlines(keepends=True)
    if all(lines[hunk.new_start - 1 :][: len(hunk.new)] == hunk.new for hunk in parsed.hunks) and not all(
        _fits(lines, hunk) for hunk in parsed.hunks
    ):
        return before, True
    for hunk in parsed.hunks:
        if not _fits(lines, hunk):
            found = blob_id(before)
            expected = f"{parsed.before}" if parsed.before else "unknown (no index line)"
            raise _refused(
                "patch-stale", name, f"{_why_not(lines, hunk)} of {file}: expected blob {expected}, found {found}"
            )
    for hunk in sorted(parsed.hunks, key=lambda hunk: hunk.start, reverse=True):
        lines[hunk.start - 1 : hunk.start - 1 + len(hunk.old)] = hunk.new
    return b"".join(lines), False


def _undo(parsed: ParsedPatch, after: bytes) -> bytes:
    lines = after.splitlines(keepends=True)
    for hunk in sorted(parsed.hunks, key=lambda hunk: hunk.new_start, reverse=True):
        lines[hunk.new_start - 1 : hunk.new_start - 1 + len(hunk.new)] = hunk.old
    return b"".join(lines)


def _fits(lines: list[bytes], hunk: Hunk) -> bool:
    return bool(hunk.old) and lines[hunk.start - 1 :][: len(hunk.old)] == hunk.old


def _why_not(lines: list[bytes], hunk: Hunk) -> str:
    there = lines[hunk.start - 1 :][: len(hunk.old)]
    if [line.rstrip(b"\r\n") for line in there] == [line.rstrip(b"\r\n") for line in hunk.old]:
        crlf = any(line.endswith(b"\r\n") for line in hunk.old)
        names = ("CRLF", "LF") if crlf else ("LF", "CRLF")
        return f"hunk {hunk.number}: line endings differ (patch {names[0]}, file {names[1]}) at line {hunk.start}"
    for offset, (expected, found) in enumerate(zip(hunk.old, there, strict=False)):
        if expected != found:
            return f"hunk {hunk.number}: line {hunk.start + offset} is not the patch's"
    return f"hunk {hunk.number}: the file ends before line {hunk.start + len(hunk.old)}"


def _blocks(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield every statement of a module outside classes and functions, those inside ``if`` blocks too."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.If):
            yield from _blocks(statement.body)
            yield from _blocks(statement.orelse)


def _definitions(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield every class and function outside others, as its name and all that it is made of."""
    for statement in _blocks(tree.body):
        if isinstance(statement, ast.ClassDef):
            head = ast.dump(ast.ClassDef(**{**dict(ast.iter_fields(statement)), "body": []}))
            yield f"class {statement.name}", head
            for inner in statement.body:
                name = getattr(inner, "name", None)
                yield f"{statement.name}.{name or ast.unparse(inner).splitlines()[0]}", ast.dump(inner)
        elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"function {statement.name}", ast.dump(statement)


def _flags(tree: ast.Module) -> set[str]:
    """Return the names that guards use: the ``if`` tests of a module, and what they are computed from."""
    statements = list(_blocks(tree.body))
    flags = {name for statement in statements if isinstance(statement, ast.If) for name in _names(statement.test)}
    assigned = [statement for statement in statements if isinstance(statement, ast.Assign)]
    for statement in reversed(assigned):
        if _target(statement) in flags:
            flags |= _names(statement.value)
    return flags


class _Statements(msgspec.Struct, kw_only=True):
    """What a module consists of, beside classes and functions."""

    imports: set[str]
    operands: set[str]
    flags: set[str]
    others: Counter[str]


def _statements(tree: ast.Module, flags: set[str]) -> _Statements:
    found = _Statements(imports=set(), operands=set(), flags=set(), others=Counter())
    for statement in _blocks(tree.body):
        match statement:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                pass
            case ast.Import() | ast.ImportFrom():
                module = getattr(statement, "module", None) or ""
                found.imports |= {
                    f"{'.' * getattr(statement, 'level', 0)}{module}:{alias.name} as {alias.asname or alias.name}"
                    for alias in statement.names
                }
            case ast.If():
                found.operands |= _operands(statement.test)
            case ast.Assign() if _target(statement) in flags and _is_guard(statement.value):
                found.flags.add(_target(statement))
                found.operands |= _operands(statement.value)
            case _:
                found.others[ast.unparse(statement)] += 1
    return found


def _target(statement: ast.Assign) -> str:
    target = statement.targets[0]
    return target.id if len(statement.targets) == 1 and isinstance(target, ast.Name) else ""


def _is_guard(value: ast.expr) -> bool:
    return all(isinstance(node, GUARD_PARTS) for node in ast.walk(value))


def _operands(value: ast.expr) -> set[str]:
    """Return what a guard is put together from with ``and``, ``or`` and ``not``; constants can't do anything."""
    match value:
        case ast.BoolOp():
            return {operand for part in value.values for operand in _operands(part)}
        case ast.UnaryOp(op=ast.Not()):
            return _operands(value.operand)
        case ast.Constant():
            return set()
    return {ast.unparse(value)}


def _names(value: ast.expr) -> set[str]:
    return {node.id for node in ast.walk(value) if isinstance(node, ast.Name)}
