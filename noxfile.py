# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "nox>=2026.4",
#     "uv>=0.9",
#     "msgspec>=0.19",
#     "packaging>=24",
#     "junitparser>=4",
#     "jinja2>=3.1",
#     "filelock>=3.16",
#     "defusedxml>=0.7",
# ]
# [tool.nox]
# script-venv-backend = "virtualenv"  # pip reads pip.conf, where a mirror is named; uv does not
# ///
"""Verifies torch / torch-npu pairs with upstream's own test files, and writes one report for all of them."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path

import nox
import uv

ROOT = Path(__file__).parent
sys.path.insert(0, str(ROOT))

from scripts import (
    apis,
    archive,
    collecting,
    console,
    difference,
    docs,
    environment,
    evidence,
    interrupts,
    matrix,
    patching,
    pipeline,
    preflight,
    process,
    running,
    upstream,
)
from scripts import export as exporting
from scripts import history as past
from scripts import nightly as night
from scripts import report as reporting
from scripts.errors import Blocked, ConfigError, Interrupted
from scripts.results import Verdict

REPORTS = Path(os.environ.get("REPORTS") or ROOT / "reports")

nox.needs_version = ">=2026.4"
nox.options.default_venv_backend = "uv"
nox.options.sessions = ["report"]
interrupts.install()
console.quiet("diff", "history", "nightly")
try:
    # nox has changed into this folder; a relative MATRIX is meant from where the caller is.
    BATCH = matrix.load(Path(os.environ.get("PWD", ROOT), os.environ.get("MATRIX") or ROOT / "matrix.toml"))
except ConfigError as error:
    print(error, file=sys.stderr)
    raise SystemExit(2) from None


def verify(session: nox.Session, pair: matrix.Pair) -> None:
    """Run every station for one pair: each one's value goes to the next, and into the result."""
    options = pipeline.parse(session.posargs)
    venv = Path(session.bin).parent
    with pipeline.Work(BATCH, pair, reports=REPORTS, options=options) as work:
        ready = work.stage("preflight", preflight.check, BATCH, pair, uv=uv.find_uv_bin(), venv=venv, scope=work.scope)
        built = work.stage("environment", environment.build, BATCH, pair, ready, venv, work.scope, anew=options.rebuild)
        base, fresh = Path(session.invoked_from), options.fresh
        tree = work.stage("tree", upstream.fetch, BATCH, pair, options.upstream, base, work.scope, fresh=fresh)
        worktree = work.stage("worktree", patching.prepare, BATCH, pair, tree)
        collected = work.stage("collected", collecting.collect, BATCH, ready, built, tree, worktree)
        # Waits for the network while tests run. The sample is there to try this with none.
        wanted = BATCH.matrix.docs and not tree.is_sample
        asked = pipeline.begin(docs.check, BATCH, pair, work.scope) if wanted else None
        running.run_files(
            *(BATCH, pair, ready, built, worktree, collected),
            folder=work.folder,
            reruns=options.reruns,
            finished=work.ran,
            progress=work.progress,
        )
        work.stage("watched", evidence.watch, BATCH, ready, built, worktree, work.cases, fresh=fresh)
        work.stage("described", apis.look, BATCH, ready, built)
        if asked:
            work.stage("docs", asked.result)
    if not work.tell().is_good:
        session.error(f"pair {pair.name}: {work.told}")


for PAIR in BATCH.pairs:
    nox.session(name=f"verify-{PAIR.name}", tags=["verify"], reuse_venv=True, allow_parallel=True)(
        pipeline.named(
            functools.partial(verify, pair=PAIR), f"Verify torch {PAIR.torch} with torch-npu {PAIR.torch_npu}."
        )
    )


@nox.session(venv_backend="none")
def report(session: nox.Session) -> None:
    """Merge the latest results of all pairs, or those at the places given after --, into one report."""
    try:
        places = [Path(session.invoked_from, place) for place in session.posargs]
        folder = reporting.combine(REPORTS, BATCH, places) if places else reporting.latest(REPORTS, BATCH)
    except Blocked as blocked:
        session.error(str(blocked).rstrip("."))
    session.log(str(folder / "report.html"))


@nox.session(venv_backend="none")
def diff(session: nox.Session) -> None:
    """Compare two reports, or two pairs of the latest one: diff -- OLD NEW [--format text|md|html|json]."""
    options = difference.parse(session.posargs)
    try:
        text, status = difference.diff(REPORTS, BATCH, Path(session.invoked_from), options)
    except Blocked as blocked:
        print(blocked, file=sys.stderr)
        raise SystemExit(difference.EXIT_IMPOSSIBLE) from None
    sys.stdout.write(text)
    sys.stdout.flush()
    if status:
        raise SystemExit(status)


@nox.session(venv_backend="none")
def nightly(session: nox.Session) -> None:
    """Verify all pairs (or those named after --), archive that, and say what changed; silent if nothing did."""
    options = night.parse(BATCH, session.posargs)
    nox_again = [sys.executable, "-m", "nox", "-f", __file__, "--envdir", str(session.cache_dir.parent)]

    def verify(log: Path) -> None:
        process.run([*nox_again, *night.arguments(options)], cwd=Path(session.invoked_from), env=os.environ, log=log)

    try:
        news = night.nightly(REPORTS, BATCH, options, verify, now=night.utc_now)
    except Blocked as blocked:
        print(blocked)
        raise SystemExit(1) from None
    except Interrupted as interrupted:
        print(f"interrupted by {interrupted.signal_name}; the next night archives what was done by then")
        raise SystemExit(interrupts.EXIT[interrupted.signal_name]) from None
    if news is not None:
        print(news.text, night.run_hook(options.hook, news) if options.hook else "", sep="", flush=True)
        if news.worse:
            raise SystemExit(1)


@nox.session(venv_backend="none")
def history(session: nox.Session) -> None:
    """Show the last archived nights (14, or the number after --) together: verdicts, flips, failures, slow cases."""
    sys.stdout.write(past.text(past.gather(archive.nights(REPORTS, BATCH), last=past.parse(session.posargs))))


@nox.session(venv_backend="none")
def export(session: nox.Session) -> None:
    """Write the patches and the description of a pull request for the pairs named after --."""
    try:
        written = exporting.export(REPORTS, BATCH, session.posargs)
    except Blocked as blocked:
        session.error(str(blocked).rstrip("."))
    for folder, result in written:
        session.log(f"{result.pair}, {result.verdict.value}: {folder}")
    if not all(result.verdict is Verdict.VERIFIED for _, result in written):
        session.error("not verified, as the description says; mend that before it is submitted")


@nox.session(reuse_venv=True)
def tests(session: nox.Session) -> None:
    """Run this project's own tests; arguments go to pytest."""
    install_tools(session)
    session.run("pytest", *session.posargs)


@nox.session(reuse_venv=True)
def lint(session: nox.Session) -> None:
    """Check format, style and types."""
    install_tools(session)
    session.run("ruff", "format", "--check", ".")
    session.run("ruff", "check", ".")
    session.run("mypy", "noxfile.py", "scripts", "tests")


@nox.session(reuse_venv=True)
def picture(session: nox.Session) -> None:
    """Take the picture of a report that README.md shows (needs Chromium)."""
    install_tools(session)
    session.run("python", "-m", "tests.picture", ".github/report.png")


@nox.session(reuse_venv=True)
def bench(session: nox.Session) -> None:
    """Time this against the same by hand, with tox and with junitparser, and renew README's table; -- --help."""
    install_tools(session, "dev", "bench")
    envdir = ("--envdir", str(session.cache_dir.parent))
    # What it is timing needs a moment to end.
    session.run("python", "-m", "tests.bench", *envdir, *session.posargs, terminate_timeout=30.0)


# Helpers


def install_tools(session: nox.Session, *groups: str) -> None:
    """Install ``groups`` of pyproject.toml (``dev`` if none is named) from the index that pip or uv is set up with."""
    own = nox.project.load_toml("noxfile.py")["dependencies"]
    tools = nox.project.dependency_groups(nox.project.load_toml("pyproject.toml"), *(groups or ("dev",)))
    session.install(*own, *tools, env=preflight.uv_environment(os.environ)[0], silent=True)
