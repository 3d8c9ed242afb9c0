"""`k3gate run` and what is done with its runs, as a user does it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

STEPS = ["checkpoint", "runtime", "quantization", "prototype", "correctness", "roofline", "bom"]


def some_long(*values: object) -> list[object]:
    """Parameters that only the long tests take: one or two of their kind run always."""
    return [pytest.param(value, marks=pytest.mark.long) for value in values]


def test_a_run_is_measured_stored_judged_and_shown(cli, tmp_path: Path) -> None:
    done = cli("run", "--probe", "selftest", "--report", "r.html")
    assert done.code == 0, done.err
    assert re.search(r"Gate: . (fail|unproven)", done.out)
    assert str(tmp_path / "r.html") in done.out
    assert "of the wall time" in done.out
    assert "<h1" in (tmp_path / "r.html").read_text()
    run_id = re.search(r"^run (\w{8}) ", done.out, re.M).group(1)
    assert f"{run_id}" in cli("runs").out
    shown = cli("show", run_id)
    assert shown.code == 0
    assert "selftest.hash_rate" in shown.out
    assert "evaluated" in shown.out


def test_the_json_document_has_the_published_shape(cli) -> None:
    done = cli("run", "--probe", "selftest", "--json")
    document = done.json()
    assert set(document) >= {"run", "inventory", "outcomes", "gate"}
    assert document["run"]["profile"] == "quick"
    assert document["run"]["status"] == "complete"
    outcome = next(o for o in document["outcomes"] if o["probe"] == "selftest")
    metric = outcome["metrics"][0]
    assert {"name", "unit", "better", "labels", "samples", "median", "interval", "state"} <= set(metric)
    assert {"value", "round", "process", "start_s"} == set(metric["samples"][0])
    assert len({s["process"] for s in metric["samples"]}) == 3, "each round in a fresh process"
    assert [step["name"] for step in document["gate"]["steps"]] == STEPS
    assert "k3gate: selftest/" in done.err, "progress goes to stderr"


def test_nothing_passes_without_evidence(cli) -> None:
    gate = cli("run", "--probe", "selftest", "--json", "-q").json()["gate"]
    for step in gate["steps"]:
        for check in step["checks"]:
            if check["verdict"] == "pass":
                assert check["evidence"], check["id"]
            elif check["verdict"] != "not_applicable":
                assert check["reason"], check["id"]


def test_a_dry_run_measures_and_stores_nothing(cli, tmp_path: Path) -> None:
    done = cli("run", "--probe", "selftest", "--dry-run")
    assert done.code == 0
    assert "cases in" in done.out
    assert not (tmp_path / "runs.sqlite").exists()
    document = cli("run", "--dry-run", "--json").json()
    assert document["seconds"] <= document["profile"]["seconds"]
    assert all(case["bytes"] >= 0 for case in document["cases"])


def test_two_evaluations_stand_side_by_side_and_a_waiver_lapses(cli, selftest: str, tmp_path: Path) -> None:
    from k3gate.gate import criteria

    waived = cli("waive", selftest, "roofline.local", "--who", "A. Buyer", "--why", "measured elsewhere")
    assert waived.code == 0, waived.err
    document = cli("gate", selftest, "--json").json()
    assert document["waivers"] == 1
    mine = tmp_path / "mine.toml"
    mine.write_text(criteria.load(None).text.replace("min = 0.65", "min = 0.66"))
    changed = cli("gate", selftest, "--criteria", mine, "--json").json()
    assert changed["waivers"] == 0
    assert changed["criteria_hash"] != document["criteria_hash"]
    assert any("roofline.local" in notice for notice in changed["notices"]), changed["notices"]
    shown = cli("show", selftest).out
    assert shown.count("evaluated ") >= 4, "every evaluation stays"


def test_the_exit_code_of_gate_is_its_verdict(cli, selftest: str) -> None:
    done = cli("gate", selftest, "--json")
    assert done.code == {"pass": 0, "fail": 1, "unproven": 3}[done.json()["verdict"]]


def test_diff_of_two_runs_and_of_a_run_from_another_profile(cli, selftest: str, tmp_path: Path) -> None:
    second = cli("run", "--probe", "selftest", "--json", "-q").json()["run"]["id"]
    done = cli("diff", selftest, second, "-o", "d.html")
    assert done.code == 0, done.err
    assert "99 % interval" in done.out
    assert "<h1" in (tmp_path / "d.html").read_text()
    other = cli("run", "--probe", "selftest", "--profile", "smoke", "--json", "-q").json()["run"]["id"]
    document = cli("diff", selftest, other, "--json").json()
    assert document["comparable"] is False
    assert "profiles differ: quick against smoke" in document["reasons"][0]


def test_export_and_import_carry_the_whole_run(cli, selftest: str, tmp_path: Path) -> None:
    assert cli("export", selftest, "-o", "run.k3run").code == 0
    elsewhere = {"K3GATE_STORE": str(tmp_path / "other.sqlite")}
    assert cli("import", "run.k3run", env=elsewhere).code == 0
    assert cli("import", "run.k3run", env=elsewhere).code == 0, "twice changes nothing"
    here, there = (
        cli("show", selftest, "--json").json(),
        cli("show", selftest, "--json", env=elsewhere).json(),
    )
    assert here == there


@pytest.mark.case("STO-05")
@pytest.mark.parametrize("number", [signal.SIGINT, *some_long(signal.SIGTERM, signal.SIGHUP)])
def test_an_interrupt_keeps_what_was_measured_and_resume_goes_on_sto_05(
    cli, tmp_path: Path, number: int
) -> None:
    environment = {
        **os.environ,
        "K3GATE_STORE": str(tmp_path / "runs.sqlite"),
        "K3GATE_SELFTEST_FAULT": "hash.64k:1:hang",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "k3gate", "run", "--probe", "selftest"],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=tmp_path,
        # These tests may themselves run under nohup, which a run respects.
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "round 1 of" in line and "selftest/" in line:
            break
    process.send_signal(number)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130, err
    assert "k3gate run --resume" in err
    (run,) = cli("runs", "--json").json()["runs"]
    assert run["status"] == "interrupted"
    before = cli("show", run["id"], "--json").json()
    gate = cli("gate", run["id"], "--json").json()
    assert gate["verdict"] == "unproven"
    assert "interrupted" in str(gate)
    resumed = cli("run", "--resume", run["id"], "--json", "-q")
    assert resumed.code == 0, resumed.err
    after = resumed.json()
    assert after["run"]["status"] == "complete"
    _assert_nothing_measured_again(before, after)
    # What disturbed the worker that was interrupted is evidence as well.
    idle = next(o for o in after["outcomes"] if o["case"] == "idle")
    assert [one["case"] for one in before["outcomes"]].count("idle") == 1
    workers = {r["process"] for o in after["outcomes"] for r in o["rounds"] if o["probe"] == "selftest"}
    assert len(idle["rounds"]) >= len(workers)
    parts = after["run"]["split"]
    assert parts["timed"] + parts["setup_in_workers"] + parts["elsewhere"] <= after["run"]["seconds"] * 1.01


def test_nohup_keeps_a_run_alive_when_its_terminal_goes(cli, tmp_path: Path) -> None:
    environment = {**os.environ, "K3GATE_STORE": str(tmp_path / "runs.sqlite")}
    process = subprocess.Popen(
        [sys.executable, "-m", "k3gate", "run", "--probe", "selftest", "--rounds", "3"],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env=environment,
        cwd=tmp_path,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "round 1 of" in line and "selftest/" in line:
            break
    process.send_signal(signal.SIGHUP)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    (run,) = cli("runs", "--json").json()["runs"]
    assert run["status"] == "complete"


def test_a_run_with_a_target_of_its_own_is_judged_where_that_file_is_not(cli, tmp_path: Path) -> None:
    from k3gate.gate import targets

    own = tmp_path / "own.toml"
    own.write_text((targets.FOLDER / "hybrid.toml").read_text().replace('name = "hybrid"', 'name = "mine"'))
    assert cli("run", "--probe", "selftest", "--rounds", "1", "--target", own, "-q").code == 0
    assert cli("export", "latest", "-o", "box.k3run").code == 0
    own.unlink()
    elsewhere = {"K3GATE_STORE": str(tmp_path / "other.sqlite")}
    assert cli("import", "box.k3run", env=elsewhere).code == 0
    assert cli("gate", "--json", env=elsewhere).json()["target"] == "mine"


def test_a_path_in_a_bundle_is_never_opened(cli, selftest: str, tmp_path: Path) -> None:
    """A stranger's bundle may name /etc/passwd as its target: it is not read, and another one can be named."""
    import sqlite3

    with sqlite3.connect(tmp_path / "runs.sqlite") as store:
        store.execute("UPDATE run SET target = '/etc/passwd', target_text = NULL")
    store.close()
    complaint = cli("gate").complaint()
    assert "does not hold the text of its own target" in complaint and "--target" in complaint
    assert "root:" not in complaint
    assert cli("gate", "--target", "hybrid", "--json").json()["target"] == "hybrid"


def _assert_nothing_measured_again(before, after) -> None:
    """Every sample that was stored before is there unchanged, and no case has more rounds than planned."""
    for outcome in before["outcomes"]:
        if outcome["probe"] != "selftest":
            continue
        now = next(o for o in after["outcomes"] if o["case"] == outcome["case"])
        kept = [sample for metric in now["metrics"] for sample in metric["samples"]]
        assert all(sample in kept for metric in outcome["metrics"] for sample in metric["samples"])
        assert (
            len({round_["round"] for round_ in now["rounds"]}) == len(now["rounds"]) == now["rounds_planned"]
        )
        assert len(kept) == 3 * now["rounds_planned"], "three samples a round, none twice"


@pytest.mark.long
@pytest.mark.case("STO-05")
def test_the_parent_killed_at_20_random_moments_loses_nothing_sto_05(cli, tmp_path: Path) -> None:
    import random

    chance = random.Random(5)
    environment = {**os.environ, "K3GATE_STORE": str(tmp_path / "runs.sqlite")}
    seen = 0
    for _ in range(20):
        process = subprocess.Popen(
            [sys.executable, "-m", "k3gate", "run", "--probe", "selftest", "-q"],
            env=environment,
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=chance.uniform(0.2, 1.8))
        process.kill()
        process.wait()
        runs = cli("runs", "--json").json()["runs"]
        for run in [r for r in runs if r["status"] != "complete"]:
            assert run["status"] == "abandoned"
            before = cli("show", run["id"], "--json").json()
            done = cli("run", "--resume", run["id"], "--json", "-q")
            assert done.code == 0, done.err
            _assert_nothing_measured_again(before, done.json())
            seen += 1
    assert seen >= 5, "too few kills fell into a run"
    assert {run["status"] for run in cli("runs", "--json").json()["runs"]} == {"complete"}


@pytest.mark.parametrize("kind", ["kill", "sigill", *some_long("crash", "exit", "exception")])
def test_a_worker_that_dies_costs_its_case_alone(cli, kind: str) -> None:
    one = "hash.64k"
    fault = {"K3GATE_SELFTEST_FAULT": f"{one}:1:{kind}"}
    done = cli("run", "--probe", "selftest", "--json", "-q", env=fault)
    assert done.code == 4, done.err
    document = done.json()
    outcomes = {o["case"]: o for o in document["outcomes"] if o["probe"] == "selftest"}
    failed = outcomes.pop(one)
    assert failed["state"] == "failed"
    assert failed["reason"].startswith("round 2 of 3: ")
    assert failed["metrics"][0]["samples"], "the round before it is kept"
    assert {o["state"] for o in outcomes.values()} <= {"ok", "unstable"}
    assert all(len(o["rounds"]) == 3 for o in outcomes.values())
    assert document["run"]["status"] == "complete"


def test_a_crashed_case_is_shown_as_crashed_and_the_circumstances_last(cli) -> None:
    done = cli("run", "--probe", "selftest", "-q", env={"K3GATE_SELFTEST_FAULT": "hash.64k:2:crash"})
    assert done.code == 4
    for shown in (done.out, cli("show").out):
        line = re.search(r"^selftest/hash.64k .*\n.*", shown, re.M).group()
        assert "[failed]\n" in line
        assert "SIGSEGV" in line
        cases = re.findall(r"^(?:selftest|machine)/\S+", shown, re.M)
        assert cases[-1] == "machine/monitor"


@pytest.mark.parametrize(
    ("verdict", "failed", "enforced", "code"),
    [
        ("pass", False, True, 0),
        ("pass", True, True, 4),
        ("unproven", False, True, 3),
        ("unproven", True, True, 4),
        ("fail", True, True, 1),
        ("fail", True, False, 4),
        ("fail", False, False, 0),
    ],
)
def test_a_failed_probe_wins_over_pass_and_unproven(
    verdict: str, failed: bool, enforced: bool, code: int
) -> None:
    from types import SimpleNamespace

    from k3gate.cli.run import _code
    from k3gate.records import State, Verdict

    outcome = SimpleNamespace(state=State.FAILED if failed else State.UNSTABLE)
    judged = SimpleNamespace(
        result=SimpleNamespace(verdict=Verdict(verdict)), record=SimpleNamespace(outcomes=(outcome,))
    )
    assert _code(judged, enforced) == code


def test_the_gate_says_what_it_does_not_show_and_what_would_settle_the_rest(cli, selftest: str) -> None:
    short, full = cli("gate", selftest).out, cli("gate", selftest, "--all").out
    hidden = int(re.search(rf"^(\d+) more checks: k3gate gate {selftest} --all$", short, re.M).group(1))
    checks = r"^     . \w+( \w+)?  \w+$"
    assert len(re.findall(checks, full, re.M)) - len(re.findall(checks, short, re.M)) == hidden
    assert "more checks" not in full
    assert short.count("does not compare a model's answers") == 1, (
        "once for the checks of a step, not under each"
    )
    assert full.count("does not compare a model's answers") > 1


def test_lines_on_what_is_left_out_fit_the_page(cli) -> None:
    measured = cli("run", "--probe", "memory", "--only", "memory/read.core*", "-q", "--rounds", "1")
    for done in (measured, cli("show")):
        assert done.code == 0, done.err
        assert all(len(line) <= 110 for line in done.out.splitlines()), done.out


@pytest.mark.parametrize("command", ["gate", "waive", *some_long("report", "diff", "export")])
def test_a_killed_run_is_marked_by_every_command(cli, selftest: str, tmp_path: Path, command: str) -> None:
    import sqlite3

    with sqlite3.connect(tmp_path / "runs.sqlite") as store:
        store.execute("UPDATE run SET status = 'running', boot = 'before' WHERE id = ?", (selftest,))
    more = {"diff": ["x"], "waive": ["roofline.local", "--who", "me", "--why", "x"]}
    cli(command, selftest, *more.get(command, []))
    with sqlite3.connect(tmp_path / "runs.sqlite") as store:
        assert store.execute("SELECT status FROM run").fetchall() == [("abandoned",)]


def test_before_the_first_run_there_are_no_runs(cli, tmp_path: Path) -> None:
    place = {"K3GATE_STORE": "", "XDG_DATA_HOME": str(tmp_path / "data")}
    done = cli("runs", env=place)
    assert (done.code, done.err) == (0, "")
    assert "no runs yet: k3gate run" in done.out
    assert cli("runs", "--json", env=place).json() == {"runs": []}
    assert "there is no store" in cli("show", env=place).complaint()
