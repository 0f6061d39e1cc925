"""The one model of what was found out: everything else (JUnit, Markdown, console) is a view of it."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Any

import msgspec

from . import storage
from .apis import ApiReport
from .docs import DocsFacts
from .environment import Environment, Package
from .errors import Blocked
from .matrix import Batch, Pair
from .patching import PatchRecord
from .preflight import Cann, Preflight
from .upstream import Tree

SCHEMA_VERSION = 1
MAX_RESULT_BYTES = 256 << 20


class Outcome(enum.Enum):
    """Of a case. ``flaky`` passed, but only when its file ran again."""

    PASSED = "passed"
    FAILED = "failed"
    ERROR = "error"
    SKIPPED = "skipped"
    XFAILED = "xfailed"
    XPASSED = "xpassed"
    CRASHED = "crashed"
    TIMEOUT = "timeout"
    NOT_RUN = "not-run"
    FLAKY = "flaky"


# Outcomes that show something of what a case reached.
PROVES = {Outcome.PASSED, Outcome.FLAKY}


class State(enum.Enum):
    """Of a run: one test file in one pair's venv."""

    COMPLETE = "complete"
    HOLLOW = "hollow"
    COLLECTION_ERROR = "collection-error"
    CRASHED = "crashed"
    TIMEOUT = "timeout"
    NOT_RUN = "not-run"


class Verdict(enum.Enum):
    """Of a pair."""

    VERIFIED = "verified"
    SAMPLE_OK = "sample-ok"
    FAILED = "failed"
    HOLLOW = "hollow"
    BLOCKED = "blocked"
    NOT_RUN = "not-run"


# Verdicts to exit with 0 for.
GOOD_VERDICTS = (Verdict.VERIFIED, Verdict.SAMPLE_OK)


class Mode(enum.Enum):
    """Whether torch_npu is loaded in the test process."""

    NPU = "npu"
    CONTROL_PLANE = "control-plane"


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Base of everything that is written into result.json."""


class Case(Record, frozen=True, kw_only=True):
    """One test. ``(file, cls, name)`` is its key; ``seconds`` is None if it never ended.

    ``body`` tells what the method does (bodies.py), so that a case that moved is known again.
    """

    file: str
    cls: str = msgspec.field(name="class")
    name: str
    outcome: Outcome
    seconds: float | None = None
    message: str = ""
    body: str | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        """What tells this case from every other of the pair."""
        return (self.file, self.cls, self.name)


class Guards(Record, frozen=True, kw_only=True):
    """How many cases a test file has, by machine: as upstream has it, and with the patch (None where there is none).

    ``names`` says what makes the machines differ, with the line: ``IS_ARM64, line 29``.
    """

    machine: str
    unpatched: int
    patched: int | None


class GuardReport(Record, frozen=True, kw_only=True):
    """What guards do to a test file, found by collecting it as on each machine."""

    counts: list[Guards]
    names: list[str] = []
    errors: list[str] = []


class Run(Record, frozen=True, kw_only=True):
    """One execution of one test file.

    ``tests`` is the number of cases, ``expected`` the number that matrix.toml asks for. ``ran`` and
    ``unittest_seconds`` are what unittest itself said ("Ran 14 tests in 10.3s"); ``broken_fixtures`` are class and
    module tear-downs that failed; ``findings`` are what a reader should know beside the cases.
    """

    file: str
    state: State
    tests: int = 0
    expected: int | None = None
    seconds: float | None = None
    outcomes: dict[str, int] = {}
    reason: str = ""
    broken_fixtures: list[str] = []
    findings: list[str] = []
    command: str = ""
    blob: str | None = None
    patch: PatchRecord | None = None
    guards: GuardReport | None = None
    exit_status: int | None = None
    ran: int | None = None
    unittest_seconds: float | None = None
    log: str | None = None
    stacks: str = ""
    attempts: int = 1

    def link(self, label: str) -> str:
        """Return where the log lies beside a report, for the column ``label``: a plain path below it, or nothing.

        A result from elsewhere may name any path; only the one that this project writes is ever linked to.
        """
        plain = f"{label}/{self.file}.log"
        return plain if self.log == plain and not {"", ".."} & set(plain.split("/")) else ""


class Reach(Record, frozen=True, kw_only=True):
    """A case that reached an API, with its outcome in the verdict's run, and what it showed of the API."""

    file: str
    cls: str = msgspec.field(name="class")
    name: str
    outcome: Outcome
    behaviours: list[str]
    through: list[str]
    child: bool


class ApiEvidence(Record, frozen=True, kw_only=True):
    """The evidence of an API: all cases that reached it, and what the passing ones among them showed.

    ``lines`` are the first lines of its statements in ``source``; ``problems`` says what is missing, naming the API.
    """

    api: str
    reached: list[Reach] = []
    source: str = ""
    lines: list[int] = []
    executed: list[int] = []
    behaviours: list[str] = []
    members: list[str] = []
    read: list[str] = []
    problems: list[str] = []

    @property
    def passing(self) -> list[Reach]:
        """The cases that prove something."""
        return [reach for reach in self.reached if reach.outcome in PROVES]


class Evidence(Record, frozen=True, kw_only=True):
    """The evidence of a pair; ``findings`` are what a reader should know of how it was found."""

    apis: list[ApiEvidence] = []
    findings: list[str] = []

    @property
    def problems(self) -> list[str]:
        """What makes a pair hollow: nothing if there is evidence of every API, and all that is required."""
        return [problem for api in self.apis for problem in api.problems]


class Block(Record, frozen=True, kw_only=True):
    """Why a pair could not be tried; ``code`` is for scripts."""

    code: str
    cause: str
    remedy: str


class UpstreamFacts(Record, frozen=True, kw_only=True):
    """Where the tree came from. ``pinned`` is matrix.toml's commit, ``built_from`` the wheel's own word."""

    source: str
    tag: str
    commit: str | None
    pinned: str | None
    built_from: str | None
    tried: list[str] = []


class EnvironmentFacts(Record, frozen=True, kw_only=True):
    """What the runs depended on."""

    os: str
    kernel: str
    glibc: str
    cores: int
    python_path: str
    npu_devices: int
    npu_name: str | None
    cann: Cann | None
    cann_wanted: str | None
    cuda: str | None
    packages: list[Package]
    dropped_variables: list[str]
    handed_to_uv: list[str]
    venv_reused: bool


class PairResult(Record, frozen=True, kw_only=True):
    """All that is known of one pair: what result.json holds, and one column of report.json.

    ``label`` is what the column is called: the pair, and where it was run if a report has the pair more than once.
    """

    pair: str
    label: str = ""
    torch: str
    torch_npu: str
    python: str
    machine: str | None = None
    mode: Mode | None = None
    verdict: Verdict
    reason: str
    upstream: UpstreamFacts | None = None
    environment: EnvironmentFacts | None = None
    blocked: Block | None = None
    mismatches: list[str] = []
    runs: list[Run] = []
    cases: list[Case] = []
    evidence: Evidence | None = None
    apis: ApiReport | None = None
    docs: DocsFacts | None = None
    started: str | None = None
    finished: str | None = None
    schema: int = SCHEMA_VERSION

    @property
    def is_good(self) -> bool:
        """Whether the pair's verdict is one to exit with 0 for."""
        return self.verdict in GOOD_VERDICTS

    @property
    def is_sample(self) -> bool:
        """Whether the bundled tree was used, which verifies nothing."""
        return self.upstream is not None and self.upstream.source == "sample"


class ApiRow(Record, frozen=True, kw_only=True):
    """An API of the batch, and by pair the passing cases that were seen to reach it."""

    name: str
    kind: str
    does: dict[str, str]
    evidence: dict[str, list[str]]


class Report(Record, frozen=True, kw_only=True):
    """report.json: all pairs of a batch. ``titles`` and ``reasons`` (of patches, by test file) are by language."""

    title: str
    titles: dict[str, str] = {}
    batch: str
    columns: list[PairResult]
    apis: list[ApiRow]
    reasons: dict[str, dict[str, str]] = {}
    schema: int = SCHEMA_VERSION


def not_run(pair: Pair, reason: str = "no result yet") -> PairResult:
    """Return the column of a pair that was not run: it stands in every report."""
    return PairResult(
        pair=pair.name,
        torch=pair.torch,
        torch_npu=pair.torch_npu,
        python=pair.python,
        verdict=Verdict.NOT_RUN,
        reason=reason,
    )


def environment_facts(
    pair: Pair, preflight: Preflight, environment: Environment, torch: dict[str, Any]
) -> EnvironmentFacts:
    """Return what a result says of its surroundings; ``torch`` is what torch said when it was imported."""
    machine = preflight.machine
    return EnvironmentFacts(
        os=machine.os,
        kernel=machine.kernel,
        glibc=machine.glibc,
        cores=machine.cores,
        python_path=preflight.interpreter.path,
        npu_devices=torch.get("npu_count") or machine.npu_devices,
        npu_name=torch.get("npu_name"),
        cann=machine.cann,
        cann_wanted=pair.cann,
        cuda=environment.cuda,
        packages=environment.packages,
        dropped_variables=preflight.dropped,
        handed_to_uv=preflight.handed,
        venv_reused=environment.reused,
    )


def upstream_facts(pair: Pair, tree: Tree, environment: Environment | None) -> UpstreamFacts:
    """Return where the tree came from, beside the commits that it should be at."""
    return UpstreamFacts(
        source=tree.source,
        tag=tree.tag,
        commit=tree.commit,
        pinned=pair.commit,
        built_from=environment.git_version if environment else None,
        tried=tree.tried,
    )


def block_of(blocked: Blocked) -> Block:
    """Return an exception as a record."""
    return Block(code=blocked.code, cause=blocked.cause, remedy=blocked.remedy)


def folder_of(reports: Path, batch: Batch) -> Path:
    """Return the folder of a batch's latest results."""
    return reports / batch.matrix.batch / "latest"


def save(reports: Path, batch: Batch, result: PairResult) -> Path:
    """Write result.json of a pair and return its path."""
    path = folder_of(reports, batch) / result.pair / "result.json"
    storage.write(path, encode(result))
    return path


def encode(record: msgspec.Struct) -> bytes:
    """Return a record as JSON that people can read and diff; text that no UTF-8 can hold is escaped."""
    return msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"


def load(path: Path) -> PairResult:
    """Read a result.json, perhaps another machine's; raises Blocked(``bad-result``) if it isn't one."""
    try:
        if path.stat().st_size > MAX_RESULT_BYTES:
            raise ValueError(f"it is larger than {MAX_RESULT_BYTES >> 20} MiB")
        result = msgspec.json.decode(path.read_bytes(), type=PairResult)
        if result.schema != SCHEMA_VERSION:
            raise ValueError(f"its schema is {result.schema}, expected {SCHEMA_VERSION}")
    except (OSError, ValueError, RecursionError) as error:
        raise Blocked("bad-result", f"{path} can't be used: {error}", "Run the pair again.") from None
    return result


def load_all(reports: Path, batch: Batch) -> list[PairResult]:
    """Return the latest result of every pair, in version order; one that is missing or unreadable is ``not-run``."""
    found = []
    for pair in batch.pairs:
        path = folder_of(reports, batch) / pair.name / "result.json"
        try:
            result = load(path)
            if (result.pair, _public(result.torch), result.torch_npu) != (pair.name, pair.torch, pair.torch_npu):
                result = not_run(pair, f"the last result is of torch {result.torch} and torch-npu {result.torch_npu}")
        except Blocked as blocked:
            result = not_run(pair, blocked.cause) if path.exists() else not_run(pair)
        found.append(result)
    return found


# Helpers


def _public(version: str) -> str:
    """Return a version without its build: 2.10.0 for 2.10.0+cpu."""
    return version.partition("+")[0]
