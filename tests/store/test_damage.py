"""A store that something else wrote into: one line that says so, or the rows that are still whole."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from k3gate.errors import UsageError
from k3gate.records import RunStatus
from k3gate.store import Store, open_store

PAGE = 4096


@pytest.fixture
def whole(
    path: Path, store: Store, make_run, make_inventory, make_outcome, make_result, make_waiver
) -> bytes:
    """The bytes of a closed store with a run that has one of everything."""
    store.begin_run(make_run(), make_inventory())
    for number in range(4):
        store.save_outcome("abcd2345", make_outcome(f"case{number}", samples=20))
    store.add_evaluation(make_result(), "criteria", "target")
    store.add_waiver(make_waiver())
    store.add_artifact("abcd2345", None, "stderr", b"a" * 9000)
    store.close()
    return path.read_bytes()


def read_all(path: Path) -> None:
    with open_store(str(path), create=False) as store:
        for run in store.runs():
            store.load(run.id)
            store.artifacts(run.id)
            for one in store.evaluations(run.id):
                store.evaluation(one.id)
        store.abandon_dead()
        store.resolve("latest")


def a_page(chance: random.Random, data: bytearray) -> bytearray:
    start = chance.randrange(len(data) // PAGE) * PAGE
    data[start : start + PAGE] = chance.choice([bytes(PAGE), chance.randbytes(PAGE)])
    return data


def a_stretch(chance: random.Random, data: bytearray) -> bytearray:
    start = chance.randrange(len(data) - 40)
    data[start : start + 40] = chance.randbytes(40)
    return data


def an_end(chance: random.Random, data: bytearray) -> bytearray:
    return data[: chance.randrange(1, len(data) - PAGE)]


@pytest.mark.parametrize("damage", [a_page, a_stretch, an_end])
def test_a_store_that_is_damaged_anywhere_is_refused_in_one_line_or_read(
    path: Path, tmp_path: Path, whole: bytes, damage: Callable[[random.Random, bytearray], bytearray]
) -> None:
    chance = random.Random(7)
    refused = 0
    for number in range(40):
        # A name of its own each time, for SQLite keeps a log beside a file that it gave up on.
        bad = tmp_path / f"bad{number}.sqlite"
        bad.write_bytes(damage(chance, bytearray(whole)))
        try:
            read_all(bad)
        except UsageError as error:
            assert "\n" not in str(error)
            assert str(bad) in str(error) or "run" in str(error)
            refused += 1
    assert refused >= {a_page: 15, a_stretch: 1, an_end: 38}[damage]
    path.write_bytes(whole)
    read_all(path)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE metric SET proofs = '[7]'",
        "UPDATE metric SET labels = '7' WHERE id = 1",
        "UPDATE metric SET better = 'sideways'",
        "UPDATE metric SET median = 'fast'",
        "UPDATE sample SET value = 9e999",
        "UPDATE outcome SET state = X'ff'",
        "UPDATE run SET inventory = CAST(X'ff7b' AS TEXT)",
        "UPDATE run SET plan = " + "'" + "[" * 100_000 + "'",
        "UPDATE evaluation SET steps = '[\"x\"]'",
        "UPDATE evaluation SET steps = '7'",
        "UPDATE evaluation SET verdict = 'splendid'",
        "UPDATE waiver SET verdict = ''",
        "DROP TABLE sample",
        "ALTER TABLE metric DROP COLUMN reason",
    ],
)
def test_rows_that_were_edited_are_named_in_one_printable_line(path: Path, whole: bytes, change: str) -> None:
    editor = sqlite3.connect(path, isolation_level=None)
    editor.execute(change)
    editor.close()
    with pytest.raises(UsageError) as caught:
        read_all(path)
    line = str(caught.value)
    assert str(path) in line
    assert line.isprintable()
    assert len(line) < 600


def test_a_dead_run_in_a_store_that_cannot_be_written_does_not_stop_reading(
    path: Path, store: Store, make_run, make_inventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.begin_run(make_run(status=RunStatus.RUNNING), make_inventory())
    monkeypatch.setattr("k3gate.store.processes.is_gone", lambda writer, here: True)
    store._database._connection.execute("PRAGMA query_only = ON")  # type: ignore[attr-defined]
    assert store.abandon_dead() == []
    assert store.load("abcd2345").run.status is RunStatus.RUNNING
    store._database._connection.execute("PRAGMA query_only = OFF")  # type: ignore[attr-defined]
    assert store.abandon_dead() == ["abcd2345"]
