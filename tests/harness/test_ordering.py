"""From an order to a lock and to what is delivered, through a store and the command line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from k3gate import cli
from k3gate.harness import ordering, stored
from k3gate.records import Run, RunStatus, Verdict
from k3gate.store import Store, open_store
from tests.gate.conftest import sound_outcomes
from tests.gate.test_bom import ORDER, dimm, machine


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "runs.sqlite"


@pytest.fixture
def store(place: Path) -> Iterator[Store]:
    with open_store(str(place)) as opened:
        yield opened


@pytest.fixture
def order(tmp_path: Path) -> Path:
    path = tmp_path / "order.toml"
    path.write_text(ORDER)
    return path


@pytest.fixture
def sound(make_inventory: Any) -> Any:
    inventory = make_inventory("bare_metal", memory={"total_bytes": 2**41, "available_bytes": 2**41 - 2**35})
    return machine(inventory)


def keep(store: Store, run_id: str, inventory: Any) -> str:
    """A complete run with sound figures of this machine."""
    run = Run(
        run_id,
        "sha256:m",
        "sha256:bare",
        "bare",
        "standard",
        "0",
        f"2026-11-30T00:00:0{run_id[-1]}+00:00",
        None,
        RunStatus.RUNNING,
        target="residency-lab",
    )
    store.begin_run(run, inventory)
    for outcome in sound_outcomes():
        store.save_outcome(run_id, outcome)
    store.update_run(
        attrs.evolve(run, status=RunStatus.COMPLETE, ended="2026-11-30T00:30:00+00:00", seconds=1800.0)
    )
    return run_id


def waive_all(store: Store, run: str, *, steps: range = range(1, 7)) -> None:
    """Let every check be that keeps these steps open."""
    result = stored.judge(store, run, keep=False).result
    for step in result.steps:
        for check in step.checks:
            if step.step in steps and check.verdict in (Verdict.UNPROVEN, Verdict.FAIL):
                stored.waive(
                    store, run, check.id, who="Buyer", why="accepted for the test", accept_failure=True
                )


def test_an_order_is_frozen_only_over_a_gate_that_holds(
    store: Store, order: Path, sound: Any, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = keep(store, "aaaaaaa1", sound)
    assert ordering.check(store, str(order), run).verdict is Verdict.PASS
    lock = tmp_path / "order.lock"
    arguments = ["bom", "freeze", str(order), run, "-o", str(lock), "--store", str(place)]
    assert cli.invoke(arguments) == 3
    out = capsys.readouterr().out
    assert "The order is not frozen" in out and "checkpoint.identity is unproven" in out
    assert "bom.match" not in out and not lock.exists()
    waive_all(store, run)
    assert cli.invoke(arguments) == 0
    held = json.loads(lock.read_text())
    assert held["run"]["id"] == run and held["verdicts"]["waivers"]
    assert "frozen:" in capsys.readouterr().out
    assert cli.invoke(["bom", "verify", str(lock), run, "--store", str(place)]) == 0
    assert cli.invoke(arguments) == 2, "a lock is never replaced"


def test_a_changed_module_makes_verify_fail_and_is_named(
    store: Store, order: Path, sound: Any, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = keep(store, "aaaaaaa1", sound)
    ordering.check(store, str(order), run)
    waive_all(store, run)
    lock = tmp_path / "order.lock"
    assert cli.invoke(["bom", "freeze", str(order), run, "-o", str(lock), "--store", str(place)]) == 0
    delivered = attrs.evolve(
        sound,
        memory=attrs.evolve(
            sound.memory,
            dimms=tuple(dimm(n, **({"part_number": "CHEAPER"} if n == 5 else {})) for n in range(16)),
        ),
    )
    keep(store, "bbbbbbb2", delivered)
    capsys.readouterr()
    assert cli.invoke(["bom", "verify", str(lock), "bbbbbbb2", "--store", str(place)]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "module P0-DIMMF1" in out and "CHEAPER" in out
    assert cli.invoke(["bom", "verify", str(lock), "bbbbbbb2", "--store", str(place), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["verdict"] == "fail"


def test_an_order_that_does_not_match_is_not_frozen_though_the_steps_hold(
    store: Store, order: Path, sound: Any
) -> None:
    run = keep(store, "aaaaaaa1", sound)
    order.write_text(
        ORDER.replace("modules = 16", "modules = 32").replace("channels = 8", "channels = 8\nslots = 32")
    )
    waive_all(store, run)
    made = ordering.freeze(store, str(order), run)
    assert made.lock is None and made.verdict is Verdict.FAIL
    assert any(
        "bom.match is fail" in reason and "ordered are 32, there are 16" in reason for reason in made.refusals
    )


def test_the_newest_order_checked_is_the_one_that_counts(store: Store, order: Path, sound: Any) -> None:
    run = keep(store, "aaaaaaa1", sound)
    good = ordering.check(store, str(order), run)
    order.write_text(ORDER.replace("modules = 16", "modules = 24"))
    ordering.check(store, str(order), run)
    match = next(c for s in stored.judge(store, run).result.steps for c in s.checks if c.id == "bom.match")
    assert match.verdict is Verdict.FAIL
    order.write_text(ORDER)
    ordering.check(store, str(order), run)
    match = next(c for s in stored.judge(store, run).result.steps for c in s.checks if c.id == "bom.match")
    assert match.verdict is Verdict.PASS and match.observed == good.system.hash


def test_check_tells_lines_and_code(
    store: Store, order: Path, sound: Any, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = keep(store, "aaaaaaa1", sound)
    assert cli.invoke(["bom", "check", str(order), run, "--store", str(place)]) == 0
    assert "Order: + pass" in capsys.readouterr().out
    order.write_text(ORDER + '[[gpu]]\nmodel = "H200"\nmemory_gb = 141\n')
    assert cli.invoke(["bom", "check", str(order), run, "--store", str(place)]) == 3
    assert "the run does not tell of GPUs" in capsys.readouterr().out
    order.write_text(ORDER.replace("mts = 5600", "mts = 6400"))
    assert cli.invoke(["bom", "check", str(order), run, "--store", str(place), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert next(line for line in told["lines"] if line["key"] == "memory.speed")["verdict"] == "worse"


@pytest.mark.parametrize("place_of_lock", ["/dev/null", "/dev/stdout", "/dev/zero", "folder", "pipe"])
def test_a_lock_is_written_to_a_file_alone(
    place_of_lock: str,
    store: Store,
    order: Path,
    sound: Any,
    place: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = keep(store, "aaaaaaa1", sound)
    waive_all(store, run)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    target = place_of_lock if place_of_lock.startswith("/") else str(tmp_path / place_of_lock)
    assert cli.invoke(["bom", "freeze", str(order), run, "-o", target, "--store", str(place)]) == 2
    told = capsys.readouterr()
    assert told.out == "" and told.err.count("\n") == 1 and f"cannot write {target}: it is a" in told.err


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b'{"k3gate_lock": 1}', b"\xff"])
def test_a_lock_that_is_none_is_one_line(
    raw: bytes, store: Store, place: Path, sound: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(store, "aaaaaaa1", sound)
    lock = tmp_path / "order.lock"
    lock.write_bytes(raw)
    assert cli.invoke(["bom", "verify", str(lock), "--store", str(place)]) == 2
    error = capsys.readouterr().err
    assert "order.lock" in error and error.count("\n") == 1


def test_the_same_file_is_planned_checked_and_frozen(
    store: Store, order: Path, sound: Any, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = keep(store, "aaaaaaa1", sound)
    assert cli.invoke(["plan", str(order), "--run", run, "--store", str(place), "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["run"] == run
    assert made["decode"]["rates"]["dram"]["basis"] == "measured"
    read = 136_990_303_232 + 2 * 434_110_464 + 27_648 * 8192
    assert made["decode"]["ceiling_tokens_per_s"] == pytest.approx(530e9 / read)
