"""Whoever dies while writing leaves whole rounds; what is replaced or cut off leaves no rows behind."""

from __future__ import annotations

import pickle
import sqlite3
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from k3gate.records import RunStatus, Sample
from k3gate.store import Store, open_store
from k3gate.store.processes import Writer

_WRITER = """
import pickle, sys
from k3gate.store import open_store
run, inventory, rounds = pickle.load(sys.stdin.buffer)
store = open_store(sys.argv[1])
store.begin_run(run, inventory)
for number, outcome in enumerate(rounds):
    store.save_outcome(run.id, outcome, number)
    print(number, flush=True)
"""


@pytest.mark.case("STO-05")
@pytest.mark.parametrize("last", [0, 17, 40])
def test_a_writer_killed_in_the_middle_of_its_saves_leaves_whole_rounds_sto_05(
    path: Path, make_run, make_inventory, make_outcome, last: int
) -> None:
    """STO-05: SIGKILL while it saves round after round: what it said was saved is there, and nothing in halves."""
    rounds = [make_outcome(rounds=number + 1, samples=60, rounds_planned=60) for number in range(60)]
    run = make_run(status=RunStatus.RUNNING, ended=None)
    process = subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(pickle.dumps((run, make_inventory(), rounds)))
    process.stdin.flush()
    said = 0
    while said <= last:
        assert process.stdout.readline() == b"%d\n" % said
        said += 1
    process.kill()
    said += len(process.stdout.read().split(b"\n")) - 1
    process.wait()
    process.stdin.close()
    process.stdout.close()
    with open_store(str(path)) as store:
        assert store.abandon_dead() == ["abcd2345"]
        (outcome,) = store.load("abcd2345").outcomes
        saved = len(outcome.rounds)
        assert saved in (said, said + 1), "no round that it said was saved is missing"
        assert outcome == rounds[saved - 1]
        # Whoever resumes it goes on from there.
        store.update_run(run)
        store.save_outcome("abcd2345", rounds[-1])
        assert store.load("abcd2345").outcomes == (rounds[-1],)
    _assert_sound(path)


def _assert_sound(path: Path) -> None:
    """SQLite finds no fault in the file, and no row belongs to a row that is gone."""
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    connection.close()


def test_a_metric_that_goes_takes_its_samples_along(
    store: Store, path: Path, make_run, make_inventory, make_outcome
) -> None:
    store.begin_run(make_run(), make_inventory())
    store.save_outcome("abcd2345", make_outcome(rounds=3, samples=5))
    store.save_outcome("abcd2345", make_outcome(rounds=0, metrics=()))
    with sqlite3.connect(path) as connection:
        counts = [
            connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
            for table in ("outcome", "round", "metric", "sample")
        ]
    connection.close()
    assert counts == [1, 0, 0, 0]
    _assert_sound(path)


def test_a_machine_that_gets_a_name_leaves_earlier_runs_as_they_were(
    store: Store, make_run, make_inventory
) -> None:
    store.begin_run(make_run("aaaa2345", machine_name=None), make_inventory())
    store.begin_run(make_run("bbbb2345", machine_name=None, status=RunStatus.RUNNING), make_inventory())
    store.update_run(make_run("bbbb2345", machine_name="Büro"))
    assert store.load("aaaa2345").run.machine_name is None
    assert store.load("bbbb2345").run == make_run("bbbb2345", machine_name="Büro")
    assert store.resolve("latest@Büro") == "bbbb2345"
    assert store.resolve("latest@m-1") == "bbbb2345", "both are runs of one machine"


def test_a_process_number_used_again_counts_as_gone(
    store: Store, make_run, make_inventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written by a process of this number that started at another time, and by one of another machine."""
    from k3gate.store import processes

    here = processes.current()
    monkeypatch.setattr(processes, "current", lambda: attrs.evolve(here, ticks=(here.ticks or 0) + 1))
    store.begin_run(make_run("aaaa2345", status=RunStatus.RUNNING), make_inventory())
    monkeypatch.setattr(processes, "current", lambda: Writer(here.pid, "another boot", 2**62, "elsewhere"))
    store.begin_run(make_run("bbbb2345", status=RunStatus.RUNNING), make_inventory())
    monkeypatch.setattr(processes, "current", lambda: here)
    store.begin_run(make_run("cccc2345", status=RunStatus.RUNNING), make_inventory())
    assert store.abandon_dead() == ["aaaa2345"]
    assert [run.status for run in store.runs()].count(RunStatus.RUNNING) == 2


def test_many_samples_keep_their_order(store: Store, make_run, make_inventory, make_outcome) -> None:
    """Samples of later rounds with earlier starts, equal values and equal stamps stay where they were put."""
    store.begin_run(make_run(), make_inventory())
    metric = make_outcome().metrics[0]
    samples = tuple(Sample(float(n % 3), n % 5, 1, 100.0 - n) for n in range(1500))
    outcome = make_outcome(metrics=(attrs.evolve(metric, samples=samples),))
    for new_round in (None, 4, 0, None):
        store.save_outcome("abcd2345", outcome, new_round)
        assert store.load("abcd2345").outcomes == (outcome,)
