"""Measures everything, prints each figure as it comes, and puts all of them into the READMEs' table."""

from __future__ import annotations

import argparse
import platform
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from scripts import interrupts, matrix, preflight
from scripts.errors import Blocked
from scripts.matrix import Batch, Pair
from tests.bench import sessions, sizes, table
from tests.bench.table import Row
from tests.conftest import ROOT

READMES = {"en": "README.md", "zh": "README.zh.md"}
PARTS = ("itself", "fetch", "reports", "pair", "pairs")


def main() -> None:
    """Run the benchmark; ends the process with 1 and a sentence if something that is to be timed fails."""
    interrupts.install()
    batch = matrix.load(ROOT / "matrix.toml")
    options = _options(batch)
    day = f"{datetime.now(UTC):%Y-%m-%d}, {platform.machine()}, {preflight.cores()} cores"
    rows = []
    try:
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            for row in _rows(Path(folder), batch, options):
                print(f"{row.what['en']}: {row.told}  [{row.against['en']}; {row.goal}]", flush=True)
                rows.append(row)
    except (RuntimeError, Blocked) as error:
        raise SystemExit(str(error)) from None
    for language, name in READMES.items():
        table.write(ROOT / name, rows, language, day)


# Helpers


def _options(batch: Batch) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="nox -s bench --")
    names = [pair.name for pair in batch.pairs]
    parser.add_argument("--envdir", type=Path, default=ROOT / ".nox", help=argparse.SUPPRESS)
    parser.add_argument("--pairs", nargs="+", choices=names, default=names[-1:], help="default: the last one")
    parser.add_argument("--upstream", action="append", help="tree of the test files; default: the sample")
    parser.add_argument("--git", help="repository to fetch a tree of the first pair from; default: matrix.toml's first")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="default: all of them")
    return parser.parse_args()


def _rows(folder: Path, batch: Batch, options: argparse.Namespace) -> Iterator[Row]:
    pairs = [batch.pair(name) for name in options.pairs]
    if "itself" in options.only:
        yield from sessions.of_itself(_below(folder, "itself"), options.rounds)
    url = options.git or next((url for url in batch.matrix.upstream.repository if "://" in url), None)
    if "fetch" in options.only and url:
        yield from sizes.of_a_fetch(_below(folder, "fetch"), batch, pairs[0], url)
    if "reports" in options.only:
        yield from sizes.of_reports(_below(folder, "reports"))
    if {"pair", "pairs"} & set(options.only):
        yield from _of_pairs(_below(folder, "pairs"), batch, pairs, options)


def _of_pairs(folder: Path, batch: Batch, pairs: Sequence[Pair], options: argparse.Namespace) -> Iterator[Row]:
    sources = options.upstream or ["sample"]
    tool = sessions.Tool(folder, batch, sources)
    hands = [
        sessions.Hand(folder, batch, pair, sources, options.envdir.resolve() / f"verify-{pair.name}".replace(".", "-"))
        for pair in pairs
    ]
    # One is there to be timed alone for each kind of tree.
    for hand in {hand.source: hand for hand in hands}.values() if "pair" in options.only else ():
        yield from sessions.of_pair(tool, hand)
    if "pairs" in options.only and len(hands) > 1:
        yield from sessions.of_all(folder, tool, hands, options.rounds)


def _below(folder: Path, name: str) -> Path:
    (folder / name).mkdir()
    return folder / name


if __name__ == "__main__":
    main()
