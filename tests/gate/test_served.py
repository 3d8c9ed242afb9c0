"""What a running runtime gave against the target: which rows count, and whose identity."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest

from k3gate.errors import UsageError
from k3gate.gate import criteria as criteria_module
from k3gate.gate.targets import load
from k3gate.metrics import find
from k3gate.records import Evidence, Metric, Outcome, Proof, State, Verdict

HYBRID = load("hybrid")
K3 = "kimi-k3"
IDENTITY = "prototype.served_identity"


def row(name: str, value: float, proofs: tuple[Proof, ...] = (), **labels: Any) -> Outcome:
    declaration = find(name)
    assert declaration is not None
    interval = (0.99 * value, 1.01 * value)
    own = {"architecture": K3, **labels}
    metric = Metric(
        name, declaration.unit, declaration.better, own, (), value, interval, State.OK, None, proofs
    )
    return Outcome("prototype", name, State.OK, None, 1.0, 3, (), (metric,))


def rate(value: float, **labels: Any) -> Outcome:
    return row("prototype.decode.rate", value, **{"streams": 1, "prompt_tokens": 256, **labels})


def test_decode_is_held_against_the_target_at_its_own_batch(check: Any, make_record: Any) -> None:
    rows = [rate(6.0), rate(2.0, streams=4)]
    found = check(make_record(rows), "prototype.decode", target=HYBRID)
    assert found.verdict is Verdict.PASS
    together = attrs.evolve(HYBRID, decode_batch=4)
    assert check(make_record(rows), "prototype.decode", target=together).verdict is Verdict.FAIL
    never = attrs.evolve(HYBRID, decode_batch=3)
    assert check(make_record(rows), "prototype.decode", target=never).verdict is Verdict.UNPROVEN


def test_the_slowest_length_of_prompts_decides(check: Any, make_record: Any) -> None:
    rows = [
        row("prototype.prefill.rate", speed, streams=1, prompt_tokens=length)
        for length, speed in ((256, 80.0), (4096, 30.0))
    ]
    assert check(make_record(rows), "prototype.prefill", target=HYBRID).verdict is Verdict.FAIL
    assert check(make_record(rows[:1]), "prototype.prefill", target=HYBRID).verdict is Verdict.PASS


@pytest.mark.parametrize("kind", ["unproven", "kimi-k3 of other sizes", "kimi-k2"])
def test_a_rate_of_another_model_is_told_and_proves_nothing(check: Any, make_record: Any, kind: str) -> None:
    found = check(make_record([rate(600.0, architecture=kind)]), "prototype.decode", target=HYBRID)
    assert found.verdict is Verdict.UNPROVEN
    assert f"was measured of what is {kind} and not proven to be kimi-k3" in found.reason


@pytest.mark.parametrize(
    ("ok", "seconds", "verdict"),
    [(True, 900.0, Verdict.PASS), (True, 2000.0, Verdict.FAIL), (None, 900.0, Verdict.UNPROVEN)],
)
def test_only_a_cold_load_proves_a_load_time(
    check: Any, make_record: Any, ok: bool | None, seconds: float, verdict: Verdict
) -> None:
    rows = [row("prototype.load.seconds", seconds, (Proof("uncached", ok, "62 % lay in the page cache"),))]
    found = check(make_record(rows), "prototype.load_time", target=HYBRID)
    assert found.verdict is verdict
    assert ok or "62 % lay in the page cache" in found.reason


def test_all_of_the_targets_sequences_must_complete(check: Any, make_record: Any) -> None:
    whole = row("prototype.concurrency.completed_share", 1.0, streams=4)
    whole = attrs.evolve(whole, metrics=(attrs.evolve(whole.metrics[0], interval=(1.0, 1.0)),))
    assert check(make_record([whole]), "prototype.concurrency", target=HYBRID).verdict is Verdict.PASS
    lost = attrs.evolve(whole, metrics=(attrs.evolve(whole.metrics[0], median=0.75, interval=(0.75, 1.0)),))
    assert check(make_record([lost]), "prototype.concurrency", target=HYBRID).verdict is not Verdict.PASS


def served(
    verdict: Verdict = Verdict.PASS, run: str | None = "abcd2345", checkpoint: str = "sha256:gguf"
) -> Evidence:
    data = {"run": run, "checkpoint": checkpoint, "architecture": K3}
    return Evidence(IDENTITY, "sha256:build", "runtime", verdict, "It had the file open.", "2026-12-01", data)


def test_what_this_run_served_counts_and_no_other_runs(check: Any, make_record: Any) -> None:
    assert check(make_record(evidence=(served(),)), IDENTITY).verdict is Verdict.PASS
    assert check(make_record(evidence=(served(Verdict.FAIL),)), IDENTITY).verdict is Verdict.FAIL
    for run in ("another1", None):
        assert check(make_record(evidence=(served(run=run),)), IDENTITY).verdict is Verdict.UNPROVEN


def test_a_checkpoint_that_the_target_pins_must_be_the_served_one(check: Any, make_record: Any) -> None:
    pinned = attrs.evolve(HYBRID, subjects={"converted": "sha256:gguf"})
    record = make_record(evidence=(served(),))
    assert check(record, IDENTITY, target=pinned).verdict is Verdict.PASS
    other = attrs.evolve(HYBRID, subjects={"converted": "sha256:mine"})
    found = check(record, IDENTITY, target=other)
    assert found.verdict is Verdict.FAIL
    assert "another checkpoint than the target's: sha256:gguf" in found.reason


def test_a_label_may_name_a_figure_of_the_target_and_no_other_word(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    text = criteria_module.SHIPPED.read_text()
    path.write_text(text.replace('streams = "target decode_batch"', 'streams = "target decode_bunch"'))
    with pytest.raises(
        UsageError, match=r"prototype\.decode\).*'target decode_bunch' names no figure of a target"
    ):
        criteria_module.load(str(path))
