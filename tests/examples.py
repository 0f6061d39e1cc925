"""A report with every verdict, state and outcome in it, and with text that tries to be markup."""

from __future__ import annotations

import msgspec

from scripts import matrix, outcomes, report, results
from scripts.apis import ApiFacts, ApiReport
from scripts.docpage import Support
from scripts.docs import DocsEntry, DocsFacts
from scripts.environment import Package
from scripts.patching import PatchRecord
from scripts.preflight import Cann
from scripts.results import (
    ApiEvidence,
    Block,
    Case,
    EnvironmentFacts,
    Evidence,
    GuardReport,
    Guards,
    Mode,
    Outcome,
    PairResult,
    Reach,
    Report,
    Run,
    State,
    UpstreamFacts,
    Verdict,
    not_run,
)
from tests.conftest import ROOT

AGENT = "test/distributed/elastic/agent/server/test/api_test.py"
TIMER = "test/distributed/elastic/timer/api_test.py"
LOCAL = "test/distributed/elastic/timer/local_timer_test.py"
FILES = (AGENT, TIMER, LOCAL)
HOSTILE = (
    "</script><script>alert(1)</script> | a\n# b `c` <img src=x onerror=alert(2)> [x](javascript:3) "
    "\x00\x1b[31m ]]> &amp;"
)
PATCH = PatchRecord(
    file=LOCAL,
    patch=f"patches/v2.10.0/{LOCAL}.patch",
    made_for="8818b1788c62cef580525aeae5330441fe8ad01a",
    before="8818b1788c62cef580525aeae5330441fe8ad01a",
    after="7441eb547e9c9848af0a70a46ceef13afdd27ac1",
    already_applied=False,
    diff="--- a/x\n+++ b/x\n@@ -1 +1 @@\n-GUARD = IS_ARM64\n+GUARD = False\n",
)
ENVIRONMENT = EnvironmentFacts(
    os="AlmaLinux 8.10",
    kernel="4.18.0",
    glibc="glibc 2.28",
    cores=64,
    python_path="/usr/bin/python3.11",
    npu_devices=8,
    npu_name="Ascend910B",
    cann=Cann(home="/usr/local/Ascend/ascend-toolkit/latest", version="8.5.0"),
    cann_wanted="8.5.0",
    cuda=None,
    packages=[
        Package(name="numpy", version="2.4.6"),
        Package(
            name="torch", version="2.10.0+cpu", wheel="torch-2.10.0+cpu-cp311.whl", sha256="ab" * 32, record="cd" * 32
        ),
        Package(name="torch-npu", version="2.10.0", wheel="torch_npu-2.10.0-cp311.whl", sha256="ef" * 32),
    ],
    dropped_variables=["PYTHONPATH"],
    handed_to_uv=["index-url = https://mirror.example/simple"],
    venv_reused=True,
)


EXPIRES = ApiFacts(
    name="torch.distributed.elastic.timer.expires",
    importable=True,
    kind="function",
    context_manager=True,
    signature="(after, scope=None, client=None)",
    module="torch.distributed.elastic.timer.api",
    file="torch/distributed/elastic/timer/api.py",
    line=252,
    source_sha256="9" * 64,
    record_ok=True,
)
APIS = {
    "2.6.0": ApiReport(apis=[EXPIRES], checked=2000, searched=400),
    "2.10.0": ApiReport(
        apis=[
            msgspec.structs.replace(
                EXPIRES, signature="(after, scope, client=None)", replaced_by=[f"torch_npu/patch.py:3 {HOSTILE}"]
            )
        ],
        checked=2100,
        differing=["torch/x.py: missing"],
        live=True,
    ),
}


DOCS = {
    "2.6.0": DocsFacts(
        entries=[
            DocsEntry(
                name="torch.distributed.elastic.timer.expires",
                support=Support.EXCEPTION,
                hardware={"Atlas A2": True, HOSTILE: False},
                place="docs/zh/page.md:7",
            )
        ],
        source="https://git.example/docs",
        branch="master",
        file="docs/zh/page.md",
        stands_in="2.5.0",
    ),
    "2.10.0": DocsFacts(code="docs-unreachable", cause=f"nobody answers {HOSTILE}", remedy="Check the network."),
}


def every_verdict(batch: matrix.Batch | None = None) -> Report:
    """Return the report: one pair per verdict, and each outcome somewhere."""
    batch = batch or matrix.load(ROOT / "matrix.toml")
    columns = [
        column("2.6.0", runs=[run(AGENT, 30), run(TIMER, 1), run(LOCAL, 14)]),
        column(
            "2.7.1",
            runs=[run(AGENT, 30, bad=[Outcome.FAILED, Outcome.ERROR, Outcome.XPASSED]), run(TIMER, 1), run(LOCAL, 14)],
        ),
        column(
            "2.8.0",
            runs=[
                run(AGENT, 31),
                run(TIMER, 1),
                run(LOCAL, 0, State.HOLLOW, reason="0 tests, 14 expected", guarded=True),
            ],
        ),
        column(
            "2.9.0",
            blocked=Block(
                code="no-wheel", cause=f"no wheel {HOSTILE}", remedy="Point uv at an index that has the wheels."
            ),
        ),
        column(
            "2.10.0",
            runs=[run(AGENT, 37), run(TIMER, 1, bad=[Outcome.FLAKY]), run(LOCAL, 14, guarded=True, patched=True)],
        ),
        column(
            "2.11.0",
            runs=[
                run(AGENT, 37, State.CRASHED, reason="ended by SIGSEGV", bad=[Outcome.CRASHED, Outcome.NOT_RUN]),
                run(TIMER, 0, State.COLLECTION_ERROR, reason=HOSTILE),
                run(LOCAL, 14, State.TIMEOUT, reason="ended at the time limit after 300 s", bad=[Outcome.TIMEOUT]),
            ],
        ),
        column(
            "2.12.0",
            runs=[run(AGENT, 37, bad=[Outcome.SKIPPED, Outcome.XFAILED]), run(TIMER, 1), run(LOCAL, 14)],
            sample=True,
        ),
        not_run(batch.pair("2.13.0")),
    ]
    return report.merge(batch, columns)


def calm(report: Report) -> Report:
    """Return the report with harmless words where it has hostile ones."""
    text = results.encode(report)
    text = text.replace(msgspec.json.encode(HOSTILE)[1:-1], b"for this Python and machine")
    return msgspec.json.decode(text, type=Report)


def column(
    pair: str, *, runs: list[tuple[Run, list[Case]]] | None = None, blocked: Block | None = None, sample: bool = False
) -> PairResult:
    """Return the column of a pair with the verdict that its runs amount to."""
    runs = runs or [run(file, 0, State.NOT_RUN, reason="not reached") for file in FILES]
    made = PairResult(
        pair=pair,
        torch=f"{pair}+cpu",
        torch_npu=pair,
        python="3.11.9",
        machine="aarch64",
        mode=Mode.NPU if pair != "2.6.0" else Mode.CONTROL_PLANE,
        verdict=Verdict.NOT_RUN,
        reason="",
        upstream=UpstreamFacts(
            source="sample" if sample else "https://git.example/pytorch",
            tag=f"v{pair}",
            commit="1" * 40,
            pinned="1" * 40,
            built_from="2" * 40,
            tried=[],
        ),
        environment=ENVIRONMENT,
        blocked=blocked,
        mismatches=[f"the tree is commit {'1' * 40}, the wheel was built from {'2' * 40}"],
        runs=[made for made, _ in runs],
        cases=[case for _, cases in runs for case in cases],
        evidence=evidence_in(runs) if pair in ("2.6.0", "2.10.0") else None,
        apis=APIS.get(pair),
        docs=DOCS.get(pair),
        started="2026-01-02T02:30:00+00:00",
        finished="2026-01-02T02:31:00+00:00",
    )
    verdict, reason = outcomes.verdict_of(made)
    return msgspec.structs.replace(made, verdict=verdict, reason=reason)


def evidence_in(runs: list[tuple[Run, list[Case]]]) -> Evidence:
    """Return the evidence of a pair whose cases of the timer's own file reached one API, and no other."""
    cases = [case for made, cases in runs for case in cases if made.file == TIMER]
    reached = [
        Reach(
            file=case.file,
            cls=case.cls,
            name=case.name,
            outcome=case.outcome,
            behaviours=["normal"],
            through=[],
            child=False,
        )
        for case in cases
    ]
    api = "torch.distributed.elastic.timer.TimerRequest"
    seen = ApiEvidence(
        api=api,
        reached=reached,
        source="torch/distributed/elastic/timer/api.py",
        lines=[20, 21, 25],
        executed=[20, 21],
        behaviours=["normal", "read=scope_id"],
    )
    return Evidence(apis=[seen])


def run(
    file: str,
    tests: int,
    state: State = State.COMPLETE,
    *,
    reason: str = "",
    bad: list[Outcome] | None = None,
    guarded: bool = False,
    patched: bool = False,
) -> tuple[Run, list[Case]]:
    """Return a run with ``tests`` cases, the first ones with the outcomes ``bad`` and hostile names and messages."""
    bad = bad or []
    cases = [
        Case(
            file=file,
            cls="SomeTest",
            name=f"test_{number:03}" + (HOSTILE if number < len(bad) else ""),
            outcome=bad[number] if number < len(bad) else Outcome.PASSED,
            seconds=None if number < len(bad) else 0.25,
            message=f"Traceback:\n{HOSTILE}\nError: {HOSTILE}" if number < len(bad) else "",
        )
        for number in range(tests)
    ]
    ran = state in (State.COMPLETE, State.HOLLOW)
    made = Run(
        file=file,
        state=state,
        tests=tests,
        expected={AGENT: 30, TIMER: 1, LOCAL: 14}[file],
        seconds=None if state is State.NOT_RUN else 2.5,
        outcomes=outcomes.count(cases),
        reason=reason,
        findings=["left behind and ended: sleep"] if file == LOCAL and ran else [],
        command=f"cd {file.rpartition('/')[0]} && python -m unittest {file.rpartition('/')[2]}",
        blob="8" * 40,
        patch=PATCH if patched else None,
        guards=GuardReport(
            counts=[
                Guards(machine="x86_64", unpatched=14, patched=14 if patched else None),
                Guards(machine="aarch64", unpatched=0, patched=14 if patched else None),
            ],
            names=["IS_ARM64, line 29"],
        )
        if guarded
        else None,
        exit_status=0 if ran else 1,
        ran=tests if ran else None,
        unittest_seconds=1.769 if ran else None,
        log=None if state is State.NOT_RUN else f"somewhere/{file}.log",
    )
    return made, cases
