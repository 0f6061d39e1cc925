"""Evidence for a pull request: a pair's patches as Ascend/pytorch's test_upstream/ has them, and the description."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from . import document, results, storage
from .errors import Blocked
from .matrix import Batch
from .results import PairResult
from .wording import LANGUAGES


def export(reports: Path, batch: Batch, names: Sequence[str]) -> list[tuple[Path, PairResult]]:
    """Write what a pull request needs for each pair of ``names``; returns the folders, with the results they tell of.

    Raises Blocked if a pair isn't in the batch, was not run yet, or has no patch to submit.
    """
    known = {pair.name: pair for pair in batch.pairs}
    if not names:
        raise Blocked("no-pair", "no pair was named", f"Name one: nox -s export -- {batch.pairs[-1].name}")
    written = []
    for name in names:
        if name not in known:
            raise Blocked("no-pair", f"there is no pair '{name}'", f"Known are {', '.join(known)}.")
        result = next(column for column in results.load_all(reports, batch) if column.pair == name)
        runs = [run for run in result.runs if run.patch]
        if result.upstream is None or result.environment is None:
            raise Blocked("no-result", f"pair {name}: {result.reason}", f"Run nox -s verify-{name} first.")
        if not runs:
            raise Blocked("no-patch", f"pair {name} ran without a patch", "There is nothing to submit for it.")
        folder = reports / batch.matrix.batch / "export" / name
        storage.remove(folder)
        for run in runs:
            assert run.patch is not None
            storage.write(folder / "test_upstream" / f"{run.file}.patch", run.patch.diff.encode())
        for language in LANGUAGES:
            reasons = {patch.file: str(getattr(patch.reason, language)) for patch in batch.matrix.patch}
            text = document.render(
                "description.md.jinja", language, result=result, pair=known[name], runs=runs, reasons=reasons
            )
            storage.write(folder / document.name_of("description", language), text.encode("utf-8", "backslashreplace"))
        written.append((folder, result))
    return written
