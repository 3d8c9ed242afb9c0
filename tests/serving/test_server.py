"""A server that k3gate starts: found, watched, and ended with all that it left, however it and we end."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from k3gate.errors import ProbeError, UsageError
from k3gate.serving import identity, processes, server, starting
from k3gate.serving.client import KEY
from k3gate.serving.identity import WantedFile
from k3gate.serving.observing import Observer
from k3gate.serving.processes import SeenFile
from k3gate.serving.server import FIRST_BYTES, LAST_BYTES, Server
from tests.serving.conftest import command, write_gguf

SECRET = "sk-very-secret-0123"


def gone(pid: int) -> bool:
    """Whether a process has ended: within ten seconds."""
    until = time.monotonic() + 10
    while time.monotonic() < until:
        if pid not in processes.table():
            return True
        time.sleep(0.02)
    return False


def appears(path: Path) -> int:
    """The pid that a program wrote there."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        if path.exists() and path.read_text():
            return int(path.read_text())
        time.sleep(0.02)
    raise AssertionError(f"nothing wrote {path}")


def ended(made: Server) -> None:
    until = time.monotonic() + 10
    while made.alive and time.monotonic() < until:
        time.sleep(0.02)


def start(*arguments: str | Path, grace_s: float = 5.0, key: str | None = None) -> Server:
    return Server(server.arguments(command(*arguments)), key, grace_s)


def test_a_server_and_what_it_left_in_a_session_of_its_own_end_together(tmp_path: Path) -> None:
    with start("--child", tmp_path / "child", "--stubborn", grace_s=0.5) as made:
        child = appears(tmp_path / "child")
        assert made.alive
        assert {made.pid, child} <= {one.pid for one in made.tree()}
    assert gone(made.pid)
    assert gone(child), "it takes no SIGTERM, has no parent and no terminal"


def test_a_server_that_takes_no_term_is_killed(tmp_path: Path) -> None:
    with start("--stubborn", "--pid", tmp_path / "pid", grace_s=0.3) as made:
        appears(tmp_path / "pid")
    assert gone(made.pid)


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGKILL,
        pytest.param(signal.SIGTERM, marks=pytest.mark.long),
        pytest.param(signal.SIGINT, marks=pytest.mark.long),
    ],
)
def test_nothing_is_left_where_whoever_started_it_is_killed(tmp_path: Path, number: signal.Signals) -> None:
    line = command("--pid", tmp_path / "pid", "--child", tmp_path / "child")
    code = (
        "import time; from k3gate.serving.server import Server, arguments; "
        f"made = Server(arguments({line!r})); time.sleep(600)"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    pid, child = appears(tmp_path / "pid"), appears(tmp_path / "child")
    owner.send_signal(number)
    owner.wait()
    assert gone(pid)
    assert gone(child)


def test_nothing_is_left_where_its_keeper_is_killed(tmp_path: Path) -> None:
    with start("--pid", tmp_path / "pid", "--child", tmp_path / "child") as made:
        child = appears(tmp_path / "child")
        parent = processes.table()[made.pid].parent
        made.tree()
        os.kill(parent, signal.SIGKILL)
        assert gone(made.pid)
        assert not made.alive
        assert "SIGKILL" in made.ended
        assert gone(child)


def test_why_a_server_ended_is_told_from_its_log() -> None:
    with start("--say", "error loading model: unknown model architecture: 'kimi-k3'", "--exit", 1) as made:
        ended(made)
        with pytest.raises(
            ProbeError,
            match=r"exit code 1\. Not supported by this build: unknown model architecture: 'kimi-k3'",
        ) as caught:
            raise starting.not_started(made)
    assert starting.unsupported(str(caught.value))
    with start("--say", "gguf_init: invalid magic characters 'x'", "--exit", 1) as made:
        ended(made)
        told = str(starting.not_started(made))
    assert "The file is damaged" in told
    assert not starting.unsupported(told)


def test_a_log_is_bounded_and_holds_no_key(tmp_path: Path) -> None:
    program = tmp_path / "chatter"
    program.write_text(
        f"#!{sys.executable}\nprint('first', '{SECRET}')\nprint('x' * 2_000_000)\nprint('last', flush=True)\n"
    )
    program.chmod(0o700)
    with Server((str(program),), SECRET) as made:
        assert gone(made.pid)
        made.log.wait(5.0)
        text = made.log.text()
    assert len(text) < FIRST_BYTES + LAST_BYTES + 1000
    assert text.startswith("first (the key)\n")
    assert "bytes left out" in text
    assert text.endswith("last\n")


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("", "is empty"),
        ("'", "cannot be read"),
        ("/no/such/llama-server -m x", "is not there"),
        (f"{sys.executable} --api-key {SECRET}", "holds a key after --api-key"),
        (f"{sys.executable} --api_key={SECRET}", "holds a key after --api_key"),
        (f"{sys.executable} --header {SECRET}", "holds the key of K3GATE_API_KEY"),
    ],
)
def test_a_command_that_cannot_be_started_or_kept_is_bad_input(
    line: str, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY, SECRET)
    with pytest.raises(UsageError, match=word) as caught:
        server.arguments(line)
    assert SECRET not in str(caught.value)


def test_the_key_reaches_the_server_by_its_stand_in_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY, SECRET)
    program = tmp_path / "teller"
    program.write_text(
        f"#!{sys.executable}\nimport os, sys\nopen({str(tmp_path / 'told')!r}, 'w').write("
        f"sys.argv[2] + ' ' + str(os.environ.get({KEY!r})))\n"
    )
    program.chmod(0o700)
    words = server.arguments(f"{shlex.quote(str(program))} --api-key '${KEY}'")
    assert SECRET not in " ".join(words)
    with Server(words, SECRET) as made:
        assert gone(made.pid)
    assert (tmp_path / "told").read_text() == f"{SECRET} None"


def test_a_process_tells_what_it_has_open_and_where_it_listens(tmp_path: Path, checkpoint: Path) -> None:
    with start("--open", checkpoint, "--pid", tmp_path / "pid") as made, Observer(made) as observer:
        appears(tmp_path / "pid")
        until = time.monotonic() + 10
        while time.monotonic() < until and not observer.listening:
            time.sleep(0.02)
        ((address, port),) = observer.listening
        found = {one.path for one in observer.files}
        observer.count(last=True)
        looked = observer.now()
        names: set[str] = set()
        while time.monotonic() < until and len(names) < 2:
            names |= {name for name, *_ in observer.drain()}
    assert (address, starting.urls([(address, port)])) == ("127.0.0.1", [f"http://127.0.0.1:{port}/v1"])
    assert str(checkpoint) in found
    assert os.path.realpath(sys.executable) in {os.path.realpath(path) for path in found}
    assert observer.peak_bytes is not None
    assert 2_000_000 < looked.own <= observer.peak_bytes < 1_000_000_000
    assert {"served.memory", "served.cores"} <= names


# --- what is read of /proc ---


def test_placement_counts_pages_by_their_size() -> None:
    text = (
        "7f00 default file=/m/small.gguf mapped=12 N0=4 N1=8 kernelpagesize_kB=4\n"
        "7f10 default anon=2 dirty=2 N1=2 kernelpagesize_kB=2048\n7f20 default\n"
    )
    assert processes.parse_placement(text) == {0: 16384, 1: 8 * 4096 + 2 * 2097152}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("0100007F:1F90", ("127.0.0.1", 8080)),
        ("00000000:0050", ("0.0.0.0", 80)),
        ("00000000000000000000000001000000:1F90", ("::1", 8080)),
    ],
)
def test_addresses_of_sockets(text: str, found: tuple[str, int]) -> None:
    assert processes.address_of(text) == found


# --- identity ---


def seen(path: Path) -> SeenFile:
    there = path.stat()
    return SeenFile(str(path), there.st_dev, there.st_ino, there.st_size, there.st_mtime_ns)


def inspected(path: Path) -> WantedFile:
    from k3gate.model.checkpoint import files

    return identity.wanted(files.find(path))[0]


def test_what_has_the_inspected_file_open_serves_it_whatever_it_is_called(
    checkpoint: Path, tmp_path: Path
) -> None:
    link = tmp_path / "another-name"
    os.link(checkpoint, link)
    own = [inspected(checkpoint)]
    assert identity.judge(own, [seen(link), seen(Path(__file__))]).ok is True


def test_another_models_file_fails_and_one_of_the_same_header_is_unproven(
    checkpoint: Path, tmp_path: Path
) -> None:
    own = [inspected(checkpoint)]
    other = write_gguf(tmp_path / "other.gguf", width=512)
    found = identity.judge(own, [seen(other)])
    assert found.ok is False
    assert "other.gguf" in found.detail
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(checkpoint.read_bytes())
    alike = identity.judge(own, [seen(copy)])
    assert alike.ok is None
    assert "its weights were not compared" in alike.detail
    hidden = tmp_path / "model"
    hidden.write_bytes(other.read_bytes())
    assert identity.judge(own, [seen(hidden)]).ok is False, "a GGUF by any name"


def test_what_was_not_seen_or_not_alone_is_unproven(checkpoint: Path, tmp_path: Path) -> None:
    own = [inspected(checkpoint)]
    assert identity.judge(own, [seen(Path(__file__))]).ok is None
    both = identity.judge(own, [seen(checkpoint), seen(write_gguf(tmp_path / "draft.gguf", width=512))])
    assert both.ok is None
    assert "draft.gguf" in both.detail
    second = write_gguf(tmp_path / "second.gguf", width=512)
    assert identity.judge([*own, inspected(second)], [seen(checkpoint)]).ok is None


def test_a_file_that_was_changed_after_it_was_inspected_fails(checkpoint: Path) -> None:
    own = [inspected(checkpoint)]
    with checkpoint.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x07")
    os.utime(checkpoint, ns=(1, own[0].changed_ns + 1))
    found = identity.judge(own, [seen(checkpoint)])
    assert found.ok is False
    assert "was changed after it was inspected" in found.detail
