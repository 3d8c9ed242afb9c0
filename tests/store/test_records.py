"""What is saved is what is loaded: every field, every type, every order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from k3gate.errors import UsageError
from k3gate.records import Evidence, Finding, Gpu, Metric, Run, RunStatus, Sample, Severity, Verdict
from k3gate.store import Store, open_store

_FINITE = st.floats(allow_nan=False, allow_infinity=False)
_LABEL = st.one_of(
    st.none(), st.booleans(), st.integers(), _FINITE, st.text(max_size=8).filter(str.isprintable)
)


@pytest.mark.parametrize("scheme", ["", "sqlite+pysqlite:///"], ids=["sqlite", "sqlalchemy"])
def test_a_run_comes_back_as_it_was_saved(
    scheme: str, path: Path, make_run, make_inventory, make_outcome, make_waiver
) -> None:
    finding = Finding("numa_balancing", Severity.LOW, "On", "1", "0", "moves pages", "turn it off")
    inventory = attrs.evolve(make_inventory(), findings=(finding,), gpus=(Gpu("H200", memory_bytes=2**37),))
    outcomes = (
        make_outcome("b", title="Zweite"),
        make_outcome("a"),
        make_outcome("empty", rounds=0, metrics=()),
    )
    with open_store(f"{scheme}{path}") as store:
        store.begin_run(make_run(status=RunStatus.RUNNING, ended=None, seconds=None), inventory)
        for outcome in outcomes:
            store.save_outcome("abcd2345", outcome)
        store.update_run(make_run())
        waiver = store.add_waiver(make_waiver())
    with open_store(f"{scheme}{path}") as store:
        record = store.load("abcd2345")
        assert record.run == make_run()
        assert record.inventory == inventory
        assert record.outcomes == outcomes
        assert record.waivers == (waiver,)
        assert waiver.id is not None
        types = [type(value) for value in record.outcomes[0].metrics[0].labels.values()]
        assert types == [
            type(value) for value in dict(sorted(outcomes[0].metrics[0].labels.items())).values()
        ]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    labels=st.dictionaries(st.text(min_size=1, max_size=6).filter(str.isprintable), _LABEL, max_size=4),
    values=st.lists(st.tuples(_FINITE, st.integers(0, 4), st.integers(1, 2**31 - 1), _FINITE), max_size=8),
)
def test_any_labels_and_samples_come_back_exactly(
    store: Store, make_run, make_inventory, make_outcome, labels: dict, values: list
) -> None:
    if not store.runs():
        store.begin_run(make_run(), make_inventory())
    metric = attrs.evolve(
        make_outcome().metrics[0], labels=labels, samples=tuple(Sample(*one) for one in values)
    )
    store.save_outcome("abcd2345", make_outcome(metrics=(metric,)))
    (loaded,) = store.load("abcd2345").outcomes[0].metrics
    assert loaded == metric
    assert {key: repr(value) for key, value in loaded.labels.items()} == {
        k: repr(v) for k, v in labels.items()
    }


def test_rounds_add_up_and_a_round_measured_again_replaces_the_first(
    store: Store, make_run, make_inventory, make_outcome
) -> None:
    store.begin_run(make_run(), make_inventory())
    for rounds in (1, 2, 3):
        store.save_outcome("abcd2345", make_outcome(rounds=rounds), new_round=rounds - 1)
    assert store.load("abcd2345").outcomes == (make_outcome(rounds=3),)
    # As `probing.outcomes.merge` does it: the old samples of the round leave, the new ones are appended.
    metric = make_outcome().metrics[0]
    again = tuple(attrs.evolve(one, value=5.0, process=9) for one in metric.samples if one.round == 0)
    metric = attrs.evolve(
        metric, samples=tuple(one for one in metric.samples if one.round) + again, median=5.0
    )
    store.save_outcome("abcd2345", make_outcome(metrics=(metric,)), new_round=0)
    assert store.load("abcd2345").outcomes == (make_outcome(metrics=(metric,)),)


def test_a_metric_that_an_outcome_no_longer_has_goes_when_it_is_saved_whole(
    store: Store, make_run, make_inventory, make_outcome
) -> None:
    store.begin_run(make_run(), make_inventory())
    first = make_outcome().metrics[0]
    second = attrs.evolve(first, labels={"threads": 1})
    store.save_outcome("abcd2345", make_outcome(metrics=(first, second)))
    store.save_outcome("abcd2345", make_outcome(metrics=(second,)))
    assert store.load("abcd2345").outcomes == (make_outcome(metrics=(second,)),)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("where", ["value", "start_s", "median", "interval", "label", "seconds"])
def test_a_number_that_is_none_is_refused_and_nothing_is_stored(
    store: Store, make_run, make_inventory, make_outcome, where: str, bad: float
) -> None:
    store.begin_run(make_run(), make_inventory())
    outcome = make_outcome()
    metric: Metric = outcome.metrics[0]
    if where in ("value", "start_s"):
        metric = attrs.evolve(metric, samples=(attrs.evolve(metric.samples[0], **{where: bad}),))
    elif where == "median":
        metric = attrs.evolve(metric, median=bad)
    elif where == "interval":
        metric = attrs.evolve(metric, interval=(1.0, bad))
    elif where == "label":
        metric = attrs.evolve(metric, labels={"share": bad})
    outcome = attrs.evolve(outcome, metrics=(metric,), seconds=bad if where == "seconds" else 1.0)
    with pytest.raises(ValueError, match="not finite"):
        store.save_outcome("abcd2345", outcome)
    assert store.load("abcd2345").outcomes == ()


@pytest.mark.case("STO-11")
def test_names_from_anywhere_are_stored_and_stay_readable_sto_11(
    store: Store, path: Path, make_run, make_inventory, make_outcome
) -> None:
    """STO-11: umlaut and emoji as they are; a NUL and a lone surrogate as visible escapes, also when exported."""
    name = "Prüfstand 🐧"
    store.begin_run(make_run(machine_name=name), make_inventory())
    metric = attrs.evolve(make_outcome().metrics[0], labels={"device": "H8G4a\udc92", "dimm": "M393\x00"})
    store.save_outcome("abcd2345", make_outcome(metrics=(metric,), reason="bad \udcff byte"))
    record = store.load("abcd2345")
    assert record.run.machine_name == name
    assert record.outcomes[0].metrics[0].labels == {"device": "H8G4a\\udc92", "dimm": "M393\\x00"}
    assert record.outcomes[0].reason == "bad \\udcff byte"
    assert store.resolve(f"latest@{name}") == "abcd2345"
    from k3gate.store.bundle import export_run, import_bundle

    bundle = path.with_name("Prüfstand 🐧.k3run")
    export_run(store, "abcd2345", bundle)
    with open_store(str(path.with_name("größe.sqlite"))) as other:
        assert import_bundle(other, bundle) == "abcd2345"
        assert other.load("abcd2345") == record


@pytest.mark.case("STO-03")
def test_stamps_of_a_stepped_clock_are_stored_as_they_are_sto_03(
    store: Store, make_run, make_inventory
) -> None:
    """STO-03: the end lies an hour before the start, the monotonic duration is 12 s."""
    run = make_run(
        started="2026-11-30T10:00:00+00:00",
        ended="2026-11-30T09:00:12+00:00",
        seconds=12.0,
        notices=("clock stepped",),
    )
    store.begin_run(run, make_inventory())
    assert store.load("abcd2345").run == run
    assert store.runs()[0].seconds == 12.0


@pytest.mark.case("STO-08")
def test_sizes_and_rates_lose_no_digit_sto_08(store: Store, make_run, make_inventory, make_outcome) -> None:
    """STO-08: bytes and B/s are stored in base units, to the last digit."""
    inventory = make_inventory()
    memory = attrs.evolve(
        inventory.memory, total_bytes=15_998_123_457, theoretical_bytes_per_s=68.719476736e9
    )
    store.begin_run(make_run(), attrs.evolve(inventory, memory=memory))
    sample = Sample(1_560_000_000_001.0, 0, 1, 0.0)
    metric = attrs.evolve(
        make_outcome().metrics[0], samples=(sample,), labels={"wanted_bytes": 1_560_000_000_001}
    )
    store.save_outcome("abcd2345", make_outcome(metrics=(metric,)))
    record = store.load("abcd2345")
    assert record.inventory.memory == memory
    assert record.outcomes[0].metrics[0].samples == (sample,)
    assert record.outcomes[0].metrics[0].labels["wanted_bytes"] == 1_560_000_000_001


def test_two_judgements_stand_beside_each_other(store: Store, make_run, make_inventory, make_result) -> None:
    store.begin_run(make_run(), make_inventory())
    first = make_result()
    second = make_result(
        criteria_hash="sha256:c2", verdict=Verdict.PASS, evaluated="2026-12-02T09:00:00+00:00"
    )
    one = store.add_evaluation(first, "criteria one", "target")
    two = store.add_evaluation(second, "criteria two", "target")
    assert store.evaluation(one) == first
    assert store.evaluation(two) == second
    assert store.stored_evaluation(one).criteria_text == "criteria one"
    listed = store.evaluations("abcd2345")
    assert [(line.id, line.verdict, line.criteria_hash) for line in listed] == [
        (one, Verdict.FAIL, "sha256:c1"),
        (two, Verdict.PASS, "sha256:c2"),
    ]
    assert store.runs()[0].verdict is Verdict.PASS


def test_evidence_joins_the_runs_of_its_subject_and_no_other(store: Store, make_run, make_inventory) -> None:
    store.begin_run(make_run(), make_inventory())
    store.begin_run(make_run("zzzz2345", fingerprint="sha256:beef"), make_inventory())
    store.add_subject("abcd2345", "sha256:checkpoint", "checkpoint")

    def evidence(subject: str, kind: str) -> Evidence:
        return Evidence(
            "checkpoint.complete", subject, kind, Verdict.PASS, "96 of 96", "2026-11-01", {"shards": 96}
        )

    for subject, kind in (
        ("sha256:checkpoint", "checkpoint"),
        ("sha256:f00d", "machine"),
        ("sha256:x", "runtime"),
    ):
        store.add_evidence(evidence(subject, kind))
        store.add_evidence(evidence(subject, kind))
    expected = (evidence("sha256:checkpoint", "checkpoint"), evidence("sha256:f00d", "machine"))
    assert store.load("abcd2345").evidence == expected
    assert store.load("zzzz2345").evidence == ()


def test_a_waiver_is_kept_once_and_gets_an_id(store: Store, make_run, make_inventory, make_waiver) -> None:
    store.begin_run(make_run(), make_inventory())
    first = store.add_waiver(make_waiver())
    assert store.add_waiver(make_waiver()) == first
    second = store.add_waiver(make_waiver(why="another reason"))
    assert store.waivers("abcd2345") == (first, second)


def test_artifacts_are_kept_in_bounds(store: Store, make_run, make_inventory) -> None:
    store.begin_run(make_run(), make_inventory())
    store.add_artifact("abcd2345", ("memory", "read.machine"), "round 0 stderr", b"\xff\x00 raw")
    store.add_artifact("abcd2345", None, "long", b"a" * 3_000_000)
    small, large = store.artifacts("abcd2345")
    assert (small.probe, small.case, small.data, small.note) == (
        "memory",
        "read.machine",
        b"\xff\x00 raw",
        None,
    )
    assert large.size == 3_000_000
    assert len(large.data) == 2**20
    assert large.note is not None
    assert "3000000" in large.note


def test_writing_to_a_run_that_is_not_there(store: Store, make_run, make_outcome, make_waiver) -> None:
    for write in (
        lambda: store.save_outcome("abcd2345", make_outcome()),
        lambda: store.update_run(make_run()),
        lambda: store.add_waiver(make_waiver()),
        lambda: store.load("abcd2345"),
    ):
        with pytest.raises(UsageError, match="run"):
            write()


def test_a_row_that_was_edited_is_named_and_not_a_traceback(
    store: Store, path: Path, make_run: Callable[..., Run], make_inventory, make_outcome
) -> None:
    import sqlite3

    store.begin_run(make_run(), make_inventory())
    store.save_outcome("abcd2345", make_outcome())
    for change in (
        "UPDATE metric SET state = 'splendid'",
        "UPDATE metric SET state = 'ok', labels = '{'",
        "UPDATE run SET status = 'dancing'",
        "UPDATE run SET status = 'complete', inventory = '[]'",
    ):
        with sqlite3.connect(path) as editor:
            editor.execute(change)
        editor.close()
        with pytest.raises(UsageError, match="cannot be read") as caught:
            store.load("abcd2345")
        assert "\n" not in str(caught.value)
