"""The workflow for many machines: its jobs are run here, each ``run`` as it stands and by bash, with stub wheels."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts import matrix
from tests import stubs, user
from tests.conftest import ROOT

FILE = ROOT / ".github" / "workflows" / "matrix.yml"
WORKFLOW: dict[str, Any] = yaml.safe_load(FILE.read_text())
JOBS: dict[str, dict[str, Any]] = WORKFLOW["jobs"]
RUNS = [step["run"] for job in JOBS.values() for step in job["steps"] if "run" in step]
INSTALL = "python3.11 -m venv .venv && .venv/bin/pip install nox"
TOKEN = re.compile(r"'[^']*'|\|\||&&|!(?!=)|[A-Za-z_][\w-]*(?:\.[\w-]+)*(?P<function>\()?")
OPERATORS = {"||": " or ", "&&": " and ", "!": " not ", "true": "True"}
A, B, C = "2.8.0", "2.9.0", "2.10.0"
THREE = user.OK + "    def test_c(self): pass\n"
BROKEN = user.OK.replace("def test_b(self): pass", "def test_b(self): self.fail('b')")


class Actions:
    """GitHub Actions, as far as the workflow uses it: contexts, conditions, and what the official actions do.

    All jobs run in one checkout, which ``checkout`` cleans as it does on a runner of one's own.
    """

    def __init__(self, folder: Path, workspace: Path, *, pairs: list[str], **variables: str) -> None:
        self.batch = folder / "batch"
        batch = stubs.write_batch(
            self.batch,
            files={"test/a_test.py": THREE},
            expected={"test/a_test.py": 2},
            pairs=[stubs.pair_row(pair) for pair in pairs],
        )
        self.links = folder / "links"
        stubs.wheels_of(self.links, matrix.load(batch))
        self.workspace = workspace
        self.artifacts = folder / "artifacts"
        self.cache = folder / "cache"
        self.summary = ""
        self.log = ""
        self.contexts: dict[str, Any] = {
            "vars": {"MATRIX": str(batch), "CANN_SET_ENV": str(folder / "no-cann-here"), **variables},
            "github": {"workflow": "matrix", "ref": "refs/heads/main", "run_id": 0, "run_attempt": 1},
            "runner": {"environment": "self-hosted"},
            "needs": {},
        }

    def job(self, name: str, *, pair: str = "", inputs: Mapping[str, Any] | None = None, **variables: str) -> bool:
        """Run a job and return whether it succeeded; ``pair`` is what its matrix gives it."""
        self.contexts |= {"inputs": inputs or {}, "matrix": {"pair": pair}, "steps": {}}
        self.contexts["vars"] |= variables
        self.contexts["github"]["run_id"] += 1
        self.summary = self.log = ""
        good = True
        for step in JOBS[name]["steps"]:
            condition = str(step.get("if", "true"))
            if not (good or "always()" in condition) or not value(condition, self.contexts):
                continue
            if step.get("run") == INSTALL and name != "plan":
                continue  # it takes a while, and all jobs run in one checkout
            succeeded, outputs = self.run(step) if "run" in step else (self.use(step), {})
            outcome = "success" if succeeded else "failure"
            self.contexts["steps"][step.get("id", "")] = {"outputs": outputs, "outcome": outcome}
            good = good and succeeded
        given = {key: fill(text, self.contexts) for key, text in JOBS[name].get("outputs", {}).items()}
        self.contexts["needs"][name] = {"result": "success" if good else "failure", "outputs": given}
        return good

    def run(self, step: Mapping[str, Any]) -> tuple[bool, dict[str, str]]:
        """Run a step as it stands, by bash."""
        files = {name: self.workspace.parent / name for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
        for file in files.values():
            file.write_text("")
        given = {key: fill(value, self.contexts) for key, value in {**WORKFLOW["env"], **step.get("env", {})}.items()}
        places = {name: str(file) for name, file in files.items()}
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", step["run"]],
            cwd=self.workspace,
            env=stubs.offline(self.links) | {"CI": "true", "GITHUB_ACTIONS": "true"} | places | given,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
        )
        self.log += done.stdout
        self.summary += files["GITHUB_STEP_SUMMARY"].read_text()
        outputs = dict(line.split("=", 1) for line in files["GITHUB_OUTPUT"].read_text().splitlines())
        return done.returncode == 0, outputs

    def use(self, step: Mapping[str, Any]) -> bool:
        """Do what an official action does."""
        given = {key: fill(value, self.contexts) for key, value in step.get("with", {}).items()}
        uses: dict[str, Callable[[dict[str, str]], None]] = {
            "actions/checkout": self.check_out,
            "actions/setup-python": lambda given: None,
            "actions/upload-artifact": self.upload,
            "actions/download-artifact": self.download,
            "actions/cache/restore": self.restore,
            "actions/cache/save": self.save,
        }
        uses[step["uses"].partition("@")[0]](given)
        return True

    def check_out(self, given: dict[str, str]) -> None:
        for name in ("reports", "shards", "previous"):
            shutil.rmtree(self.workspace / name, ignore_errors=True)

    def upload(self, given: dict[str, str]) -> None:
        """Keep what ``path`` names; of a pattern, the folders from its first wildcard on are kept too."""
        assert given["path"]
        base = self.workspace / given["path"].partition("*")[0]
        for found in self.workspace.glob(given["path"]):
            below = found.relative_to(base) if "*" in given["path"] else "."
            shutil.rmtree(self.artifacts / given["name"], ignore_errors=True)
            shutil.copytree(found, self.artifacts / given["name"] / below)

    def download(self, given: dict[str, str]) -> None:
        for found in self.artifacts.glob(given["pattern"]):
            shutil.copytree(found, self.workspace / given["path"] / found.name)

    def restore(self, given: dict[str, str]) -> None:
        assert not (self.cache / given["key"]).exists()
        if found := sorted(self.cache.glob(f"{given['restore-keys']}*"), key=lambda path: path.stat().st_mtime_ns):
            shutil.copytree(found[-1], self.workspace / given["path"])

    def save(self, given: dict[str, str]) -> None:
        shutil.copytree(self.workspace / given["path"], self.cache / given["key"])

    def pairs(self) -> list[str]:
        """Return the pairs that the matrix of the job ``verify`` has."""
        return list(value(JOBS["verify"]["strategy"]["matrix"]["pair"], self.contexts))

    def write(self, pair: str, text: str) -> None:
        """Let a pair's test file be another one."""
        (self.batch / "trees" / f"v{pair}" / "test" / "a_test.py").write_text(text)

    def report(self) -> dict[str, dict[str, Any]]:
        """Return the columns of the report that the last job uploaded, by pair."""
        report = json.loads((self.artifacts / "report" / "report.json").read_text())
        return {column["pair"]: column for column in report["columns"]}

    def verdicts(self) -> dict[str, str]:
        return {pair: column["verdict"] for pair, column in self.report().items()}


def fill(text: object, contexts: Mapping[str, Any]) -> str:
    """Return a text with its expressions filled in, as GitHub writes their values."""

    def shown(match: re.Match[str]) -> str:
        found = value(match[1], contexts)
        return "" if found is None else str(found).lower() if isinstance(found, bool) else str(found)

    return re.sub(r"\$\{\{(.*?)\}\}", shown, str(text))


def value(expression: str, contexts: Mapping[str, Any]) -> Any:
    """Return the value of an expression, with or without its braces, by way of Python's operators."""

    def token(match: re.Match[str]) -> str:
        if match[0] in OPERATORS:
            return OPERATORS[match[0]]
        if match[0].startswith("'") or match["function"]:
            return match[0]
        found: Any = contexts
        for name in match[0].split("."):
            found = found.get(name) if isinstance(found, Mapping) else None
        return repr(found)

    functions = {"fromJSON": json.loads, "always": lambda: True}
    return eval(TOKEN.sub(token, expression.strip("${} ")), {"__builtins__": {}, **functions})


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return user.checkout(tmp_path_factory.mktemp("runner") / "checkout")


def check(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    file = folder / "workflow.yml"
    file.write_text(text)
    argv = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", str(file)]
    return subprocess.run(argv, capture_output=True, text=True)


def test_github_would_accept_the_workflow(tmp_path: Path) -> None:
    good = check(FILE.read_text(), tmp_path)
    bad = check(FILE.read_text().replace("fail-fast", "fail-slow"), tmp_path)

    assert good.returncode == 0, good.stdout
    assert bad.returncode == 1
    assert "fail-slow" in bad.stdout


def test_its_matrix_is_the_pairs_of_the_shipped_batch(tmp_path: Path, workspace: Path) -> None:
    actions = Actions(tmp_path, workspace, pairs=[C], MATRIX=str(ROOT / "matrix.toml"))

    assert actions.job("plan"), actions.log

    assert actions.pairs() == [pair.name for pair in matrix.load(ROOT / "matrix.toml").pairs]


def test_three_nights_on_three_machines(tmp_path: Path, workspace: Path) -> None:
    actions = Actions(tmp_path, workspace, pairs=[A, B, C])
    actions.write(B, BROKEN)
    cann = tmp_path / "ascend-toolkit"
    cann.mkdir()
    set_env = cann / "set_env.sh"
    # As CANN's does, it reads what may not be set, and ends with a test that may be false.
    set_env.write_text(f"export ASCEND_HOME_PATH={cann} LD_LIBRARY_PATH={cann}:$NOT_SET\n[ -n '' ]\n")

    # The first: one machine has CANN, one has none and a failing case, the third is off.
    assert actions.job("plan"), actions.log
    assert actions.pairs() == [A, B, C]
    assert actions.job("verify", pair=C, CANN_SET_ENV=str(set_env)), actions.log
    assert not actions.job("verify", pair=B, CANN_SET_ENV="")
    assert not actions.job("report")

    assert actions.verdicts() == {A: "not-run", B: "failed", C: "verified"}
    assert [actions.report()[pair]["mode"] for pair in (A, B, C)] == [None, "control-plane", "npu"]
    assert f"not good: {{'{A}': 'not-run', '{B}': 'failed'}}" in actions.log
    assert f"| {A} | {A} | **not run** |" in actions.summary
    assert "## " not in actions.summary
    assert not (actions.artifacts / "report" / "difference.md").exists()

    # The second: all is well.
    actions.write(B, THREE)
    assert actions.job("verify", pair=A), actions.log
    assert actions.job("verify", pair=B), actions.log
    assert actions.job("report"), actions.log

    assert actions.verdicts() == {A: "verified", B: "verified", C: "verified"}
    assert (actions.artifacts / "report" / "difference.md").read_text() in actions.summary
    assert re.search(r"fixed.*T\.test\\?_b", actions.summary)

    # The third: a case is gone that matrix.toml doesn't ask for: every verdict is good, and yet something is worse.
    actions.write(B, user.OK)
    assert actions.job("verify", pair=B), actions.log
    assert not actions.job("report")

    assert actions.verdicts() == {A: "verified", B: "verified", C: "verified"}
    assert "not good" not in actions.log
    assert re.search(r"removed.*T\.test\\?_c", actions.summary)


def test_without_any_shard_every_pair_stands_in_the_report_as_not_run(tmp_path: Path, workspace: Path) -> None:
    actions = Actions(tmp_path, workspace, pairs=[A, B])

    assert not actions.job("report", inputs={"upstream": "sample"})

    assert actions.verdicts() == {A: "not-run", B: "not-run"}
    assert not actions.cache.exists()  # what another tree gave is not what later nights are compared with


def test_inputs_reach_the_session_as_they_are(tmp_path: Path, workspace: Path) -> None:
    actions = Actions(tmp_path, workspace, pairs=[C])

    assert not actions.job("verify", pair=C, inputs={"upstream": "no where; touch $(pwd)/owned", "reruns": 3})
    assert not actions.job("report")

    column = actions.report()[C]
    assert column["verdict"] == "blocked"
    assert "no where; touch $(pwd)/owned" in column["reason"]
    assert not actions.job("verify", pair=C, inputs={"reruns": 99})
    assert "--reruns 99: expected a number from 0 to 10" in actions.log
    assert not list(tmp_path.rglob("owned"))


@pytest.mark.parametrize(
    ("inputs", "variables", "labels"),
    [
        ({}, {}, "ubuntu-latest"),
        ({}, {"VERIFY_RUNS_ON": '["self-hosted", "linux", "npu"]'}, ["self-hosted", "linux", "npu"]),
        ({"runs-on": '"mine"'}, {"VERIFY_RUNS_ON": '["self-hosted", "linux", "npu"]'}, "mine"),
    ],
)
def test_runners_are_chosen_by_label(inputs: dict[str, str], variables: dict[str, str], labels: object) -> None:
    assert value(JOBS["verify"]["runs-on"], {"inputs": inputs, "vars": variables}) == labels


def test_a_job_may_read_the_code_and_no_more_and_ends_in_time() -> None:
    assert WORKFLOW["permissions"] == {"contents": "read"}
    assert all("permissions" not in job and job["timeout-minutes"] <= 180 for job in JOBS.values())


def test_nothing_that_comes_from_outside_is_read_as_shell() -> None:
    assert not [run for run in RUNS if "${{" in run]


def test_only_official_actions_are_used_each_in_a_named_version() -> None:
    used = {step["uses"] for job in JOBS.values() for step in job["steps"] if "uses" in step}

    assert used
    assert not [name for name in used if not re.fullmatch(r"actions/[a-z/-]+@v\d+", name)]


def test_one_failing_pair_does_not_stop_the_others_nor_the_report() -> None:
    assert JOBS["verify"]["strategy"]["fail-fast"] is False
    assert value(JOBS["report"]["if"], {"needs": {"plan": {"result": "success"}, "verify": {"result": "failure"}}})
