"""Which run a user means, and what is said where that is none or several."""

from __future__ import annotations

import pytest

from k3gate.errors import UsageError
from k3gate.records import RunStatus
from k3gate.store import Store


@pytest.fixture
def filled(store: Store, make_run, make_inventory) -> Store:
    for run_id, day, fields in (
        ("aaaa2222", 1, {}),
        ("aabb2222", 2, {"machine": "m-2", "fingerprint": "sha256:beef", "machine_name": "other"}),
        ("cccc2222", 4, {"status": RunStatus.INTERRUPTED}),
        ("dddd2222", 3, {"machine": "m-3", "fingerprint": "sha256:cafe"}),
    ):
        store.begin_run(
            make_run(run_id, started=f"2026-11-0{day}T00:00:00+00:00", **fields), make_inventory()
        )
    return store


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("aaaa2222", "aaaa2222"),
        ("aab", "aabb2222"),
        ("c", "cccc2222"),
        ("latest", "cccc2222"),
        ("latest@other", "aabb2222"),
        ("latest@m-2", "aabb2222"),
        ("latest@beef", "aabb2222"),
        ("latest@sha256:be", "aabb2222"),
        ("latest@m-1", "cccc2222"),
    ],
)
def test_a_reference_names_one_run(filled: Store, reference: str, expected: str) -> None:
    assert filled.resolve(reference) == expected


def test_only_complete_runs_are_evidence(filled: Store) -> None:
    assert filled.resolve("latest", complete_only=True) == "dddd2222"
    with pytest.raises(UsageError, match="interrupted") as caught:
        filled.resolve("cccc", complete_only=True)
    assert "--resume cccc2222" in str(caught.value)


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("zz", ["zz", "cccc2222", "k3gate runs"]),
        ("aa", ["2 runs", "aaaa2222", "aabb2222"]),
        ("", ["aaaa2222"]),
        ("%", ["cccc2222"]),
        ("latest@nowhere", ["nowhere", "box", "other"]),
        ("latest@", ["box", "other"]),
        ("latest@sha256:", ["box", "other"]),
        ("latest@box", ["2 machines", "m-1", "m-3"]),
        ("a\nb\x1b[31m", ["a\\nb\\x1b[31m"]),
    ],
)
def test_a_reference_that_names_none_or_several(filled: Store, reference: str, words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        filled.resolve(reference)
    line = str(caught.value)
    assert "\n" not in line
    for word in words:
        assert word in line.replace("'", "").replace("\\\\", "\\")


def test_at_most_five_candidates_are_listed(store: Store, make_run, make_inventory) -> None:
    for number in range(8):
        store.begin_run(make_run(f"aaaa000{number}"), make_inventory())
    with pytest.raises(UsageError) as caught:
        store.resolve("aaaa")
    assert str(caught.value).count("aaaa000") == 5


def test_an_empty_store_says_how_to_fill_it(store: Store) -> None:
    with pytest.raises(UsageError, match="k3gate run"):
        store.resolve("latest")


def test_runs_are_listed_newest_first(filled: Store, make_outcome, make_result) -> None:
    filled.save_outcome("aaaa2222", make_outcome())
    filled.add_evaluation(make_result("aaaa2222"), "c", "t")
    lines = filled.runs()
    assert [line.id for line in lines] == ["cccc2222", "dddd2222", "aabb2222", "aaaa2222"]
    first = lines[-1]
    assert (first.machine_name, first.machine, first.profile, first.status) == (
        "box",
        "m-1",
        "quick",
        RunStatus.COMPLETE,
    )
    assert (first.cases, first.verdict, first.target, first.seconds) == (1, "fail", "hybrid", 180.25)
    assert lines[0].verdict is None
    assert lines[0].cases == 0
