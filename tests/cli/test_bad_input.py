"""What a user types wrong or meets on a bad day: one clear line, the right exit code, nothing stored lost."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest


def test_an_unknown_probe(cli) -> None:
    line = cli("run", "--probe", "memroy").complaint()
    assert "probe 'memroy' is unknown: did you mean 'memory'?" in line


def test_an_unknown_command_option_and_profile(cli) -> None:
    assert "did you mean 'report'?" in cli("reprot").complaint()
    assert "No such option" in cli("run", "--fast").complaint()
    assert "profile 'quik' is unknown: did you mean 'quick'?" in cli("run", "--profile", "quik").complaint()


def test_a_run_id_that_matches_none_or_two(cli, tmp_path: Path, make_inventory) -> None:
    from k3gate.records import Run, RunStatus
    from k3gate.store import open_store

    with open_store(str(tmp_path / "runs.sqlite")) as store:
        for run_id in ("aaaa1111", "aaaa2222"):
            run = Run(
                run_id, None, None, None, "quick", "0", "2026-11-30T00:00:00+00:00", None, RunStatus.RUNNING
            )
            store.begin_run(run, make_inventory())
    assert "zzzzzzzz" in cli("show", "zzzzzzzz").complaint()
    line = cli("gate", "aaaa").complaint()
    assert "aaaa1111" in line
    assert "aaaa2222" in line


def test_a_store_that_is_no_store(cli, tmp_path: Path) -> None:
    bad = tmp_path / "bad.sqlite"
    bad.write_bytes(b"this is no database at all, and it is long enough to be looked at" * 20)
    line = cli("runs", "--store", bad).complaint()
    assert str(bad) in line
    assert bad.read_bytes().startswith(b"this is no database")


def test_a_store_that_is_a_directory_or_missing(cli, tmp_path: Path) -> None:
    assert str(tmp_path) in cli("runs", "--store", tmp_path).complaint()
    line = cli("show", "--store", tmp_path / "none.sqlite").complaint()
    assert "none.sqlite" in line
    assert not (tmp_path / "none.sqlite").exists()


def test_a_store_of_a_newer_schema(cli, selftest: str, tmp_path: Path) -> None:
    path = tmp_path / "runs.sqlite"
    with sqlite3.connect(path) as store:
        store.execute("UPDATE alembic_version SET version_num = '9999'")
    line = cli("runs").complaint()
    assert "newer" in line
    with sqlite3.connect(path) as store:
        assert store.execute("SELECT count(*) FROM run").fetchone()[0] == 1


def test_a_root_that_is_no_machine(cli, tmp_path: Path) -> None:
    assert str(tmp_path) in cli("host", "--root", tmp_path).complaint()


def test_no_store_is_made_for_a_bundle_that_is_none(cli, tmp_path: Path) -> None:
    (tmp_path / "bad.k3run").write_bytes(b"no bundle")
    for name in ("none.k3run", "bad.k3run"):
        assert name in cli("import", tmp_path / name).complaint()
    assert not list(tmp_path.glob("*.sqlite*"))


def test_a_broken_bundle(cli, selftest: str, tmp_path: Path) -> None:
    bad = tmp_path / "bad.k3run"
    bad.write_bytes(b"PK\x03\x04 no zip at all")
    assert "bad.k3run" in cli("import", bad).complaint()
    assert cli("export", selftest, "-o", "good.k3run").code == 0
    good = (tmp_path / "good.k3run").read_bytes()
    bad.write_bytes(good[: len(good) // 2])
    assert "bad.k3run" in cli("import", bad).complaint()
    assert "none.k3run" in cli("import", tmp_path / "none.k3run").complaint()
    assert len(cli("runs", "--json").json()["runs"]) == 1


def test_a_criteria_file_with_a_typo_is_refused_before_anything_is_measured(cli, tmp_path: Path) -> None:
    from k3gate.gate import criteria

    mine = tmp_path / "mine.toml"
    mine.write_text(criteria.load(None).text.replace("relative_to =", "relativ_to =", 1))
    line = cli("run", "--probe", "selftest", "--criteria", mine).complaint()
    assert "mine.toml" in line
    assert "relativ_to" in line
    assert not (tmp_path / "runs.sqlite").exists()
    mine.write_text("[[check]\n")
    assert "mine.toml" in cli("run", "--probe", "selftest", "--criteria", mine).complaint()


def test_an_unknown_target(cli) -> None:
    assert "did you mean 'hybrid'?" in cli("run", "--probe", "selftest", "--target", "hybird").complaint()


def test_a_report_path_is_checked_before_anything_is_measured(cli, tmp_path: Path) -> None:
    line = cli("run", "--probe", "selftest", "--report", "nowhere/r.html").complaint()
    assert "nowhere" in line
    assert not (tmp_path / "runs.sqlite").exists()


def test_a_working_set_below_four_times_the_caches(cli) -> None:
    line = cli("run", "--probe", "memory", "--working-set", "1MB", "--dry-run").complaint()
    assert "4 x" in line or "4 times" in line
    for text in ("plenty", "0", "0.0001", "\uff18GB", "8G8", "-1", "9" * 5000):
        assert "no size" in cli("run", "--working-set", text).complaint()


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8gb", 8 * 10**9),
        ("8 GiB", 8 * 2**30),
        ("512mib", 2**29),
        ("1.5k", 1500),
        ("4096", 4096),
        ("2T", 2 * 10**12),
    ],
)
def test_sizes_as_people_write_them(text: str, size: int) -> None:
    from k3gate.cli.run import _size

    assert _size(text) == size


RUN = ("run", "--probe", "selftest")


@pytest.mark.parametrize("text", ["\udcff", "a\nb", "\x1b[31m", "x" * 5000, "", " "])
@pytest.mark.parametrize(
    "command",
    [
        (*RUN, "--machine"),
        (*RUN, "--only"),
        (*RUN, "--target"),
        (*RUN, "--criteria"),
        (*RUN, "--profile"),
        ("run", "--probe"),
        ("run", "--resume"),
        ("show",),
        ("diff", "latest"),
        ("runs", "--store"),
        ("host", "--root"),
        ("import",),
        (),
    ],
)
def test_text_that_is_no_name_is_one_short_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command, text: str
) -> None:
    from k3gate.cli import invoke

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("K3GATE_STORE", str(tmp_path / "runs.sqlite"))
    assert invoke([*command, text]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("k3gate: ")
    assert err.count("\n") == 1
    assert len(err) < 600
    assert err.rstrip("\n").isprintable()
    assert command == ("import",) or not list(tmp_path.iterdir())


def test_a_long_word_is_shown_by_its_beginning(capsys: pytest.CaptureFixture[str]) -> None:
    from k3gate.cli import invoke

    for command in (["run", "--probe"], ["run", "--profile"], ["run", "--target"], []):
        assert invoke([*command, "x" * 150]) == 2
        assert "'" + "x" * 80 + "...'" in capsys.readouterr().err


def test_bytes_that_are_no_text_are_shown_as_escapes(cli, selftest: str, tmp_path: Path) -> None:
    assert "'\\udcff'" in cli("run", "--machine", "\udcff").complaint()
    assert "\\udcff: make a run" in cli("show", "--store", tmp_path / "\udcff").complaint()
    done = cli("report", "-o", "\udcff.html")
    assert done.code == 0
    assert "\\udcff.html" in done.out
    assert b"\xff.html" in [os.fsencode(entry.name) for entry in tmp_path.iterdir()]


def test_a_path_that_the_system_refuses_is_bad_input(cli, selftest: str) -> None:
    long = "x" * 300
    for command in (
        ("export", "-o"),
        (*RUN, "--target"),
        (*RUN, "--criteria"),
        ("report", "-o"),
        ("import",),
    ):
        assert "name too long" in cli(*command, long).complaint().lower()


def test_a_pipe_or_a_device_is_no_criteria_file(cli, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")
    for name in ("pipe.toml", "/dev/zero", "/dev/tty", "."):
        for option in ("--criteria", "--target"):
            line = cli(
                *RUN, option, f"./{name}" if name != "." and name[0] != "/" else name, timeout=20
            ).complaint()
            assert "give a TOML file" in line or "is unknown" in line


def test_resume_takes_no_other_plan(cli, selftest: str) -> None:
    assert "leave --profile away" in cli("run", "--resume", selftest, "--profile", "quick").complaint()
    assert "leave --target away" in cli("run", "--resume", selftest, "--target", "hybrid").complaint()
    assert "leave --machine away" in cli("run", "--resume", selftest, "--machine", "box").complaint()
    assert "none.toml" in cli("run", "--resume", selftest, "--criteria", "none.toml").complaint()
    assert "is complete" in cli("run", "--resume", selftest).complaint()
    assert "there is no store" in cli("run", "--resume", selftest, "--store", "none.sqlite").complaint()


def test_a_waiver_of_an_unknown_check_or_without_a_name(cli, selftest: str) -> None:
    line = cli("waive", selftest, "roofline.lokal", "--who", "me", "--why", "x").complaint()
    assert "roofline.local" in line
    assert "who" in cli("waive", selftest, "roofline.local", "--who", " ", "--why", "x").complaint()
    done = cli("waive", selftest, "prototype.residency", "--who", "me", "--why", "x")
    if "fail" in cli("gate", selftest, "--all").out:
        assert "--accept-failure" in done.complaint()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_a_home_that_cannot_be_written(cli, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o555)
    tmp_path.chmod(0o755)
    for folder in tmp_path.parents:
        if folder.stat().st_mode & 0o005 != 0o005 and str(folder).startswith("/tmp/pytest"):
            folder.chmod(0o755)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("XDG_")}
    done = subprocess.run(
        ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *_python(), *RUN],
        capture_output=True,
        text=True,
        env={**environment, "HOME": str(home)},
        cwd="/",
    )
    if "Permission denied" in done.stderr and "k3gate:" not in done.stderr:
        pytest.skip("the interpreter cannot be read by another user here")
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1


def _python() -> list[str]:
    return [sys.executable, "-m", "k3gate"]


@pytest.mark.case("STO-02")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small file system")
def test_a_disk_that_fills_up_stops_the_run_and_keeps_its_rows_sto_02(cli, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", small], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"mounting is not permitted here: {mounted.stderr.strip()}")
    try:
        store = {"K3GATE_STORE": str(small / "runs.sqlite")}
        first = cli("run", "--probe", "selftest", "-q", env=store)
        assert first.code == 0, first.err
        free = os.statvfs(small)
        (small / "filler").write_bytes(b"\0" * max(0, free.f_bavail * free.f_frsize - 64 * 1024))
        full = cli("run", "--probe", "selftest", "--rounds", "200", "-q", env=store)
        assert full.code == 4, (full.code, full.err)
        assert str(small) in full.err
        assert full.err.count("\n") == 1
        (small / "filler").unlink()
        statuses = [run["status"] for run in cli("runs", "--json", env=store).json()["runs"]]
        assert "complete" in statuses
        assert cli("show", env=store).code == 0
    finally:
        subprocess.run(["umount", small], check=True)


def test_a_machine_without_a_name_or_with_a_book_for_one(cli) -> None:
    assert "1 to 100 characters" in cli("run", "--probe", "selftest", "--machine", " ").complaint()
    assert "1 to 100 characters" in cli("run", "--probe", "selftest", "--machine", "x" * 101).complaint()


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_closed_streams_are_no_reason_for_a_traceback(
    cli, selftest: str, tmp_path: Path, closed: str
) -> None:
    line = f'"{sys.executable}" -m k3gate gate {closed}'
    environment = {**os.environ, "K3GATE_STORE": str(tmp_path / "runs.sqlite")}
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, env=environment)
    assert done.returncode in (1, 3), done.stderr
    assert "Traceback" not in done.stderr
    line = f'"{sys.executable}" -m k3gate run --probe selftest {closed}'
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr


def test_a_reader_that_goes_away_is_no_verdict(cli, selftest: str, tmp_path: Path) -> None:
    line = f'{{ "{sys.executable}" -m k3gate show --json; echo $? >&2; }} | true'
    environment = {**os.environ, "K3GATE_STORE": str(tmp_path / "runs.sqlite")}
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, env=environment)
    assert done.stderr.split() == ["141"]


def test_a_trace_of_nearly_kimi_k3s_shape_is_not_replayed(cli, tmp_path: Path) -> None:
    """93 layers of 896 experts: the dense layer, which routes nothing, was recorded too."""
    path = tmp_path / "nearly.jsonl"
    rows = ",".join(["[" + ",".join(map(str, range(880, 896))) + "]"] * 93)
    path.write_text(
        '{"k3gate_routing": 1, "experts": 896, "tokens": 1}\n{"token": 0, "layers": [' + rows + "]}\n"
    )
    line = cli("run", "--routing", path, "--profile", "quick").complaint()
    assert "nearly.jsonl has 93 layers with 16 of 896 experts, and Kimi K3 92 with 16 of 896" in line
    assert "layer 0 is dense and routes nothing, leave it out" in line
