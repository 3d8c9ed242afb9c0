"""A run in this process: clocks that jump, stores that refuse, machines that differ."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from k3gate.errors import StorageError, UsageError
from k3gate.harness import run as harness
from k3gate.harness.listening import Listener
from k3gate.probing.contract import Applies, Planned, Reason
from k3gate.records import Inventory, LeftOut, Outcome, Round, Run, RunStatus, State
from k3gate.store import Store, open_store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(str(tmp_path / "runs.sqlite")) as opened:
        yield opened


def begin(store: Store) -> Run:
    request = harness.Request(profile="smoke", target="residency-lab", probes=("selftest",), rounds=2)
    return harness.start(store, harness.prepare(request))


@pytest.mark.case("STO-03")
def test_a_wall_clock_set_back_by_an_hour_does_not_change_the_duration_sto_03(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    wall = time.time
    back = 0.0

    class SetBack(Listener):
        def measured(self, outcome: Outcome, latest: Round) -> None:
            nonlocal back
            back = 3600.0

    monkeypatch.setattr(time, "time", lambda: wall() - back)
    begun = time.monotonic()
    record = harness.measure(store, begin(store), SetBack())
    assert record.run.seconds is not None
    assert 0 < record.run.seconds <= time.monotonic() - begun
    assert any(notice.startswith("clock stepped") for notice in record.run.notices)
    assert "-3600 s" in str(record.run.notices)
    assert record.run.status is RunStatus.COMPLETE


def test_a_steady_clock_leaves_no_notice(store: Store) -> None:
    assert harness.measure(store, begin(store), Listener()).run.notices == ()


@pytest.mark.case("STO-02")
def test_a_store_that_refuses_a_round_ends_the_run_and_keeps_the_earlier_ones_sto_02(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begin(store)
    save = store.save_outcome
    calls = 0

    def refuse_the_fourth(*arguments: object, **named: object) -> None:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise StorageError("no space left in /x (0 bytes free)")
        save(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "save_outcome", refuse_the_fourth)
    with pytest.raises(StorageError, match="no space left"):
        harness.measure(store, run, Listener())
    kept = store.load(run.id)
    assert kept.run.status is RunStatus.STORAGE_FAILED
    assert sum(len(outcome.rounds) for outcome in kept.outcomes) == 3


def test_a_run_is_taken_up_only_on_its_machine_and_by_its_version(store: Store) -> None:
    run = begin(store)
    elsewhere = attrs.evolve(run, status=RunStatus.INTERRUPTED, fingerprint="sha256:another")
    store.update_run(elsewhere)
    with pytest.raises(UsageError, match="make a new run here"):
        harness.take_up(store, run.id)
    store.update_run(attrs.evolve(run, status=RunStatus.INTERRUPTED, version="0.0.1"))
    with pytest.raises(UsageError, match=r"begun by k3gate 0\.0\.1"):
        harness.take_up(store, run.id)


def test_a_run_is_not_taken_up_on_a_twin_or_under_other_limits(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begin(store)
    store.update_run(attrs.evolve(run, status=RunStatus.INTERRUPTED))
    here = harness.host.read()
    assert here.machine.id, "this test needs a machine with an id"

    def pretend(inventory: Inventory) -> None:
        monkeypatch.setattr(harness.host, "read", lambda **asked: inventory)

    pretend(attrs.evolve(here, machine=attrs.evolve(here.machine, id="0" * 32)))
    with pytest.raises(UsageError, match="begun on the machine of id"):
        harness.take_up(store, run.id)
    pretend(attrs.evolve(here, cpu=attrs.evolve(here.cpu, allowed=(0,), online=(0,))))
    with pytest.raises(UsageError, match=r"cpu\.allowed was .*, is \[0\].*make a new run here"):
        harness.take_up(store, run.id)
    kernel = attrs.evolve(here.kernel, swappiness=1, release="6", numa_balancing=None, overcommit_memory=7)
    pretend(attrs.evolve(here, kernel=kernel))
    with pytest.raises(UsageError, match=r"and [12] more"):
        harness.take_up(store, run.id)
    calmer = attrs.evolve(
        here,
        kernel=attrs.evolve(here.kernel, load_average=(9.0, 9.0, 9.0)),
        memory=attrs.evolve(here.memory, available_bytes=1),
    )
    pretend(calmer)
    assert harness.take_up(store, run.id).status is RunStatus.RUNNING


def test_what_cannot_be_measured_is_told_with_its_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    class Empty:
        name, title, metrics = "empty", "has no case", ()

        def applies(self, inventory: Inventory) -> Applies | Reason:
            return Applies()

        def cases(self, inventory: Inventory, profile: object) -> Planned:
            return Planned((), (LeftOut("empty", "one", "no hands"),))

    class Refusing(Empty):
        name = "refusing"

        def applies(self, inventory: Inventory) -> Applies | Reason:
            return Reason(State.NOT_PRESENT, "no feet")

    probes = [Empty()]

    def load(names: object, notices: list[str]) -> list[Empty]:
        notices.append("probe x is broken")
        return probes

    monkeypatch.setattr(harness.registry, "load", load)
    request = harness.Request(profile="smoke", target="residency-lab")
    with pytest.raises(UsageError, match=r"nothing to measure here.*one: no hands; probe x is broken"):
        harness.prepare(request)
    probes.append(Refusing())
    with pytest.raises(UsageError, match=r"no case matches 'y'.*probe refusing: no feet; probe x is broken"):
        harness.prepare(attrs.evolve(request, only=("y",)))


def test_the_split_of_the_wall_adds_up(store: Store) -> None:
    run = harness.measure(store, begin(store), Listener()).run
    split = run.split
    assert run.seconds is not None
    assert split["timed"] + split["setup_in_workers"] == pytest.approx(split["workers"])
    assert split["workers"] + split["elsewhere"] == pytest.approx(run.seconds, abs=0.05)
    assert split["timed"] > 0


def test_what_others_did_is_a_round_for_each_worker(store: Store) -> None:
    record = harness.measure(store, begin(store), Listener())
    idle = next(outcome for outcome in record.outcomes if outcome.probe == "machine")
    assert idle.case == "idle"
    assert {metric.name for metric in idle.metrics} <= {"machine.cpu.other_share", "machine.cpu.steal_share"}
    assert (
        len(idle.rounds)
        == len({s.process for o in record.outcomes for m in o.metrics for s in m.samples}) - 1
    )


def test_a_target_file_is_found_again_from_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: Store
) -> None:
    from k3gate.gate import targets
    from k3gate.harness import stored

    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.toml").write_text((targets.FOLDER / "hybrid.toml").read_text())
    request = harness.Request(profile="quick", target="own.toml", probes=("selftest",), rounds=1)
    run = harness.start(store, harness.prepare(request))
    harness.measure(store, run, Listener())
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert stored.judge(store, run.id).result.target == "hybrid"


@pytest.mark.case("TOP-14")
def test_top_14_the_image_is_planned_with_a_copy_for_each_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_inventory: Any
) -> None:
    from k3gate import host
    from k3gate.gate import targets

    monkeypatch.setattr(host, "read", lambda **asked: make_inventory("bare_metal"))
    own = tmp_path / "own.toml"
    text = (targets.FOLDER / "residency-lab.toml").read_text()
    own.write_text(
        text.replace("[sources]", 'replicate_per_node = true\n[sources]\nreplicate_per_node = "ours"', 1)
    )
    request = harness.Request(profile="standard", target=str(own))
    image = harness.prepare(request).plan.profile.image_bytes
    assert image == targets.load(str(own)).image(2).bytes > targets.load("residency-lab").image().bytes


def test_a_worker_that_was_killed_while_idle_leaves_a_word_in_the_run(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was lost, and yet somebody kills processes here: the run says so, once."""
    from k3gate.probing import execute

    ended = execute._Worker.ended

    def killed(worker: Any, *, stopped: bool) -> Any:
        return attrs.evolve(ended(worker, stopped=stopped), reason="the worker died of SIGKILL")

    monkeypatch.setattr(execute._Worker, "ended", killed)
    record = harness.measure(store, begin(store), Listener())
    assert (
        len([one for one in record.run.notices if "died of SIGKILL" in one])
        == len({one for one in record.run.notices if "died of SIGKILL" in one})
        > 0
    )
