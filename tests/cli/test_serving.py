"""`k3gate run --command`: a server started, measured, judged and ended; and what is left where it dies."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from k3gate.errors import UsageError
from k3gate.harness import serving
from k3gate.serving import processes
from tests.cli.conftest import Cli, Result
from tests.serving.conftest import command, write_gguf

KEY = "sk-very-secret-0123"
QUICK = ("--probe", "prototype", "--prompts", "64", "--tokens", "16")


def run(
    cli: Cli, line: str, checkpoint: Path, *more: str | Path, env: dict[str, str] | None = None
) -> Result:
    return cli("run", *QUICK, "--command", line, "--checkpoint", checkpoint, *more, "--json", "-q", env=env)


def check(document: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(
        one
        for step in document["gate"]["steps"]
        for one in step["checks"]
        if one["id"] in (name, name.split(".")[1])
    )
    return found


def metrics(document: dict[str, Any], case: str) -> dict[str, Any]:
    outcome = next(one for one in document["outcomes"] if (one["probe"], one["case"]) == ("prototype", case))
    return {"": outcome, **{one["name"]: one for one in outcome["metrics"]}}


def test_a_run_starts_measures_judges_and_ends_a_server(cli: Cli, tmp_path: Path) -> None:
    checkpoint = write_gguf(tmp_path / "small.gguf")
    done = run(cli, command("--open", checkpoint, "--pid", tmp_path / "pid"), checkpoint, "--streams", "4")
    assert done.code == 0, done.err
    document = done.json()
    assert check(document, "runtime.loaded")["verdict"] == "pass"
    served = check(document, "prototype.served_identity")
    assert (served["verdict"], served["reason"]) == (
        "pass",
        "Its processes had the inspected file open, by device and inode, and no other weights.",
    )
    load = metrics(document, "load")["prototype.load.seconds"]
    assert len(load["samples"]) == 3
    assert load["labels"] == {"architecture": "kimi-k3 of other sizes"}
    alone, many = metrics(document, "prompt.64"), metrics(document, "streams.4")
    assert 100 < alone["prototype.decode.rate"]["median"] < 200
    assert len(alone["prototype.token.gap"]["samples"]) == 3 * 15
    assert many["prototype.concurrency.completed_share"]["median"] == 1.0
    assert len(many["prototype.first_token.seconds"]["samples"]) == 12
    memory = metrics(document, "memory")
    assert 5e6 < memory["prototype.memory.peak"]["median"] < 1e9
    assert memory["prototype.memory.placed"]["labels"]["memory_node"] == 0
    # What is small says nothing of how fast, or how large, Kimi K3 is.
    peak = check(document, "prototype.peak_memory")
    assert peak["verdict"] == "unproven"
    assert "was measured of what is kimi-k3 of other sizes" in peak["reason"]
    assert int((tmp_path / "pid").read_text()) not in processes.table()


@pytest.mark.long
def test_the_report_shows_what_a_runtime_gave(cli: Cli, tmp_path: Path) -> None:
    checkpoint = write_gguf(tmp_path / "small.gguf")
    assert run(cli, command("--open", checkpoint), checkpoint).code == 0
    report = cli("report", "-o", tmp_path / "report.html")
    assert report.code == 0
    page = (tmp_path / "report.html").read_text()
    assert "is none of this model" in page
    assert "Time to first token" in page


@pytest.mark.long
def test_another_models_file_behind_the_command_fails(cli: Cli, tmp_path: Path) -> None:
    inspected, other = write_gguf(tmp_path / "small.gguf"), write_gguf(tmp_path / "other.gguf", width=512)
    done = run(cli, command("--open", other), inspected)
    assert done.code == 4
    document = done.json()
    served = check(document, "prototype.served_identity")
    assert served["verdict"] == "fail"
    assert "other.gguf open, and not the inspected checkpoint" in served["reason"]
    assert check(document, "runtime.loaded")["verdict"] == "unproven"
    rate = metrics(document, "prompt.64")["prototype.decode.rate"]
    assert (rate["state"], rate["labels"]["architecture"]) == ("failed", "unproven")


@pytest.mark.long
def test_a_server_killed_in_mid_measurement_leaves_what_came_and_no_orphan(cli: Cli, tmp_path: Path) -> None:
    checkpoint = write_gguf(tmp_path / "small.gguf")
    # The first answer proves that it answers, two tell how long words are; the fourth is measured.
    line = command(
        "--open", checkpoint, "--kill-at", "4", "--child", tmp_path / "child", "--pid", tmp_path / "pid"
    )
    done = run(cli, line, checkpoint, "--rounds", "3")
    assert done.code == 4
    reading = metrics(done.json(), "prompt.64")
    assert reading[""]["state"] == "failed"
    assert "the server ended in mid-measurement, it died of SIGKILL" in reading[""]["reason"]
    gaps = reading["prototype.token.gap"]
    assert 0 < len(gaps["samples"]) < 3 * 15
    assert metrics(done.json(), "memory")[""]["state"] == "failed"
    left = processes.table()
    assert not {int((tmp_path / name).read_text()) for name in ("child", "pid")} & set(left)


@pytest.mark.long
def test_ctrl_c_and_a_kill_leave_no_orphan(cli: Cli, tmp_path: Path) -> None:
    checkpoint = write_gguf(tmp_path / "small.gguf")
    for number in (signal.SIGINT, signal.SIGKILL):
        pid = tmp_path / f"pid-{number}"
        line = command(
            "--open", checkpoint, "--pid", pid, "--child", tmp_path / f"child-{number}", "--rate", "2"
        )
        asked = ["run", *QUICK, "--command", line, "--checkpoint", str(checkpoint), "-q"]
        process = subprocess.Popen(
            [sys.executable, "-m", "k3gate", *asked],
            env={**os.environ, "K3GATE_STORE": str(tmp_path / f"{number}.sqlite")},
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until = time.monotonic() + 30
        while not (pid.exists() and pid.read_text()) and time.monotonic() < until:
            time.sleep(0.05)
        process.send_signal(number)
        assert process.wait(30) == (130 if number == signal.SIGINT else -signal.SIGKILL)
        owned = {int(pid.read_text()), int((tmp_path / f"child-{number}").read_text())}
        until = time.monotonic() + 20
        while owned & set(processes.table()) and time.monotonic() < until:
            time.sleep(0.05)
        assert not owned & set(processes.table())


@pytest.mark.long
def test_a_runtime_that_does_not_know_the_architecture_fails_step_2(cli: Cli, tmp_path: Path) -> None:
    checkpoint = write_gguf(tmp_path / "small.gguf")
    said = "llama_model_load: error loading model: unknown model architecture: 'kimi-k3'"
    done = run(cli, command("--say", said, "--exit", "1"), checkpoint)
    assert done.code == 4
    loaded = check(done.json(), "runtime.loaded")
    assert loaded["verdict"] == "fail"
    assert "Not supported by this build: unknown model architecture: 'kimi-k3'" in loaded["reason"]
    assert check(done.json(), "prototype.served_identity")["verdict"] == "unproven"


@pytest.mark.long
def test_a_key_is_found_nowhere(cli: Cli, tmp_path: Path) -> None:
    checkpoint = write_gguf(tmp_path / "small.gguf")
    env = {"K3GATE_API_KEY": KEY}
    line = command("--open", checkpoint, "--refuse-from", "5", "--key") + " '$K3GATE_API_KEY'"
    done = run(cli, line, checkpoint, "--report", tmp_path / "report.html", env=env)
    shown = cli("prototype", "--command", line, "--checkpoint", checkpoint, *QUICK[2:], env=env)
    exported = cli("export", "-o", tmp_path / "x.k3run", env=env)
    assert exported.code == 0, exported.err
    texts = [done.out, done.err, shown.out, shown.err, cli("show", "--json", env=env).out]
    assert any("whatever your key (the key) says" in one for one in texts), (
        "the server told it, and it was taken out"
    )
    for one in texts:
        assert KEY not in one
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert KEY.encode() not in path.read_bytes(), path
    with zipfile.ZipFile(tmp_path / "x.k3run") as bundle:
        for name in bundle.namelist():
            assert KEY.encode() not in bundle.read(name), name
    with sqlite3.connect(tmp_path / "runs.sqlite") as store:
        logs = [row[0] for row in store.execute("SELECT data FROM artifact")]
    assert any(b"listening with the key (the key)" in one for one in logs), "its log is kept, without the key"


@pytest.mark.long
def test_a_bare_endpoint_is_stored_and_is_no_evidence(cli: Cli) -> None:
    from tests.serving.misbehaving_server import END, MisbehavingServer, finish, running, text, usage

    def answer(body: dict[str, Any], _: int) -> list[object]:
        size = len(body["messages"][0]["content"])
        return [*([text("a"), 0.005] * 8), finish("length"), usage(size, 8), END]

    with running(MisbehavingServer(answer)) as server:
        done = cli("run", *QUICK, "--endpoint", server.url, "--json", "-q")
    assert done.code == 0, done.err
    served = check(done.json(), "prototype.served_identity")
    assert served["verdict"] == "unproven"
    assert metrics(done.json(), "prompt.64")["prototype.decode.rate"]["labels"]["architecture"] == "unproven"


@pytest.mark.parametrize(
    ("asked", "word"),
    [
        ({}, "either --command"),
        ({"command": "python3 x", "endpoint": "http://127.0.0.1:9"}, "either --command"),
        ({"command": "/no/such/server"}, "is not there"),
        ({"command": "python3 x", "checkpoint": "/no/such/file"}, "/no/such/file"),
        (
            {"command": "python3 x", "checkpoint": "hf://moonshotai/Kimi-K3"},
            "the files that the server opens",
        ),
        ({"command": "python3 x --api-key abc"}, "holds a key"),
        ({"endpoint": "http://127.0.0.1:9", "checkpoint": "small.gguf"}, "give --command"),
        ({"endpoint": "box:80"}, "is no endpoint"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_starts(asked: dict[str, Any], word: str) -> None:
    with pytest.raises(UsageError, match=re.escape(word)):
        serving.prepare(serving.Asked(**asked))


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--command", "python3 x"), "needs --checkpoint"),
        (("--checkpoint", "small.gguf"), "--command"),
        (("--endpoint", "http://127.0.0.1:9", "--probe", "selftest"), "add --probe prototype"),
        (("--resume", "latest", "--command", "python3 x"), "leave --command away"),
    ],
)
def test_bad_input_is_one_line(cli: Cli, arguments: tuple[str, ...], word: str) -> None:
    assert word in cli("run", *arguments).complaint()


@pytest.mark.long
def test_the_plan_names_the_cases_and_their_time_comes_on_top(cli: Cli, tmp_path: Path) -> None:
    checkpoint = write_gguf(tmp_path / "small.gguf")
    asked = ("--command", command(), "--checkpoint", checkpoint, "--dry-run", "--json")
    planned = cli("run", "--profile", "smoke", *asked).json()
    cases = [one["case"] for one in planned["cases"] if one["probe"] == "prototype"]
    assert cases == ["load", "prompt.256", "prompt.1024", "memory"]
    without = cli("run", "--profile", "smoke", "--dry-run", "--json").json()
    ours = {(one["probe"], one["case"]) for one in planned["cases"] if one["probe"] != "prototype"}
    assert ours == {(one["probe"], one["case"]) for one in without["cases"]}
    (left,) = [one for one in without["left_out"] if one["probe"] == "prototype"]
    assert left["reason"].startswith("no runtime was named")


@pytest.mark.long
def test_prototype_starts_a_server_and_stores_nothing(cli: Cli, tmp_path: Path) -> None:
    checkpoint = write_gguf(tmp_path / "small.gguf")
    asked = ("prototype", "--command", command("--open", checkpoint), "--checkpoint", checkpoint, *QUICK[2:])
    done = cli(*asked, "--json")
    assert done.code == 0, done.err
    document = done.json()
    assert document["served_identity"] == "proven"
    assert document["load_seconds"] > 0
    assert len(document["readings"][0]["answers"]) == 3
    shown = cli(*asked)
    assert "Nothing was stored" in shown.out
    assert not (tmp_path / "runs.sqlite").exists()
    assert json.dumps(document)
    assert shlex.split(command())[0] == document["command"][0]
