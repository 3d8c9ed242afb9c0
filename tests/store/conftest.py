"""A store in an empty folder, and records whose every field is filled."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from k3gate.records import (
    Better,
    Bound,
    Case,
    CheckResult,
    GateResult,
    LeftOut,
    Metric,
    Outcome,
    Proof,
    Round,
    Run,
    RunStatus,
    Sample,
    State,
    StepResult,
    Verdict,
    Waiver,
)
from k3gate.store import Store, open_store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the store of this test is."""
    return tmp_path / "runs.sqlite"


@pytest.fixture(scope="session")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty store to copy: migrations take longer than most tests of a store."""
    made = tmp_path_factory.mktemp("empty") / "runs.sqlite"
    open_store(str(made)).close()
    return made


@pytest.fixture
def store(path: Path, empty: Path) -> Iterator[Store]:
    """An empty store."""
    shutil.copyfile(empty, path)
    with open_store(str(path)) as opened:
        yield opened


@pytest.fixture
def make_run() -> Callable[..., Run]:
    """A complete run; any field may be given."""

    def make(run_id: str = "abcd2345", **fields: Any) -> Run:
        case = Case(
            "memory",
            "read.machine",
            "All",
            "machine",
            {"threads": 2, "nodes": [0]},
            4.5,
            1 << 30,
            labels={"a": 1},
        )
        values: dict[str, Any] = {
            "machine": "m-1",
            "fingerprint": "sha256:f00d",
            "machine_name": "box",
            "profile": "quick",
            "version": "0.1",
            "started": "2026-11-30T10:00:00+00:00",
            "ended": "2026-11-30T10:03:00+00:00",
            "status": RunStatus.COMPLETE,
            "seconds": 180.25,
            "target": "hybrid",
            "command": "k3gate run",
            "notices": ("clock stepped", "second"),
            "split": {"timed": 91.5, "setup": 40.0},
            "plan": (case,),
            "left_out": (LeftOut("memory", "read.node1", "no memory"),),
        }
        return Run(id=run_id, **(values | fields))

    return make


@pytest.fixture
def make_outcome() -> Callable[..., Outcome]:
    """A memory outcome with one metric of `rounds` rounds of `samples` samples each."""

    def make(case: str = "read.machine", rounds: int = 3, samples: int = 2, **fields: Any) -> Outcome:
        taken = tuple(
            Sample(1e10 + number * 0.1 + index, number, 4000 + number, number + index / 7)
            for number in range(rounds)
            for index in range(samples)
        )
        metric = Metric(
            name="memory.bandwidth.read",
            unit="B/s",
            better=Better.HIGHER,
            labels={
                "threads": 2,
                "share": 2.0,
                "tiny": 1e-300,
                "huge_pages": True,
                "cpu_node": None,
                "isa": "avx2",
                "pool_bytes": 2**62,
            },
            samples=taken,
            median=1.00000000005e10,
            interval=(0.1 + 0.2, 1e10),
            state=State.OK,
            reason=None,
            proofs=(
                Proof("placement", True, "512 of 512 pages"),
                Proof("page_size", None, "smaps unreadable"),
            ),
        )
        values: dict[str, Any] = {
            "state": State.UNSTABLE,
            "reason": "interval is wide",
            "seconds": 12.5,
            "rounds_planned": 3,
            "rounds": tuple(
                Round(number, State.OK, None, 4.0, 2.5, 1.0, 4000 + number) for number in range(rounds)
            ),
            "metrics": (metric,),
            "title": "All cores",
        }
        return Outcome(probe="memory", case=case, **(values | fields))

    return make


@pytest.fixture
def make_waiver() -> Callable[..., Waiver]:
    """A waiver of a check of the run."""

    def make(run_id: str = "abcd2345", **fields: Any) -> Waiver:
        values: dict[str, Any] = {
            "check": "roofline.local",
            "criteria": "sha256:c1",
            "target": "sha256:t1",
            "observed": "1.2e10",
            "verdict": Verdict.UNPROVEN,
            "who": "Änne Groß",
            "when": "2026-12-01T08:00:00+00:00",
            "why": "measured by the vendor",
        }
        return Waiver(id=None, run=run_id, **(values | fields))

    return make


@pytest.fixture
def make_result(make_waiver: Callable[..., Waiver]) -> Callable[..., GateResult]:
    """A judgement of the run with a number, a word and nothing observed, and a waiver."""

    def make(run_id: str = "abcd2345", **fields: Any) -> GateResult:
        checks = (
            CheckResult(
                "roofline.local",
                "Local bandwidth holds",
                Verdict.WAIVED,
                Verdict.UNPROVEN,
                1.2e10,
                (1.1e10, 1.3e10),
                Bound(1.25e10, None),
                "B/s",
                "too noisy",
                "ours",
                "run `standard`",
                make_waiver(run_id),
                ("memory/read.machine#memory.bandwidth.read",),
            ),
            CheckResult("roofline.bare_metal", "No hypervisor", Verdict.FAIL, Verdict.FAIL, "kvm"),
        )
        steps = (
            StepResult(
                5,
                "correctness",
                Verdict.UNPROVEN,
                (CheckResult("correctness.text", "Text is right", Verdict.UNPROVEN, Verdict.UNPROVEN),),
                "Is the output right?",
            ),
            StepResult(6, "roofline", Verdict.FAIL, checks, "Which tier limits it?"),
            StepResult(7, "BOM", Verdict.UNPROVEN, (), ""),
        )
        values: dict[str, Any] = {
            "target": "hybrid",
            "target_hash": "sha256:t1",
            "criteria": "shipped",
            "criteria_hash": "sha256:c1",
            "verdict": Verdict.FAIL,
            "waivers": 1,
            "steps": steps,
            "version": "0.1",
            "evaluated": "2026-12-01T09:00:00+00:00",
            "notices": ("one",),
        }
        return GateResult(run=run_id, **(values | fields))

    return make
