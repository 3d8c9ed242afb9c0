"""A store behind an SQLAlchemy URL: whole transactions, one snapshot, and the refusals of a plain path."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from k3gate.errors import StorageError, UsageError
from k3gate.store import Store, open_store
from k3gate.store.bundle import export_run, import_bundle
from k3gate.store.database import Statements


@pytest.fixture
def url(path: Path) -> str:
    return f"sqlite:///{path}"


def refusal(location: str, *, create: bool = True) -> str:
    with pytest.raises(UsageError) as caught:
        open_store(location, create=create).close()
    line = str(caught.value)
    assert "\n" not in line
    return line


def test_path_and_url_are_two_ways_to_one_store(
    path: Path, url: str, make_run, make_inventory, make_outcome, make_result, make_waiver
) -> None:
    with open_store(url) as store:
        store.begin_run(make_run(), make_inventory())
        for rounds in (1, 2, 3):
            store.save_outcome("abcd2345", make_outcome(rounds=rounds), new_round=rounds - 1)
        key = store.add_evaluation(make_result(), "criteria", "target")
        store.add_waiver(make_waiver())
        store.add_subject("abcd2345", "sha256:checkpoint", "checkpoint")
        store.add_artifact("abcd2345", ("memory", "read.machine"), "stderr", b"\x00\xff")
        through_url = store.load("abcd2345"), store.evaluation(key), store.artifacts("abcd2345"), store.runs()
    with open_store(str(path)) as store:
        assert store.load("abcd2345").outcomes == (make_outcome(),)
        assert (
            store.load("abcd2345"),
            store.evaluation(key),
            store.artifacts("abcd2345"),
            store.runs(),
        ) == through_url


def test_a_bundle_goes_from_one_kind_of_database_to_the_other(
    store: Store, tmp_path: Path, make_run, make_inventory, make_outcome
) -> None:
    store.begin_run(make_run(), make_inventory())
    store.save_outcome("abcd2345", make_outcome())
    export_run(store, "abcd2345", tmp_path / "x.k3run")
    with open_store(f"sqlite:///{tmp_path / 'other.sqlite'}") as other:
        import_bundle(other, tmp_path / "x.k3run")
        import_bundle(other, tmp_path / "x.k3run")
        assert other.load("abcd2345") == store.load("abcd2345")
        assert len(other.runs()) == 1


def test_a_transaction_that_fails_leaves_nothing(url: str, make_run, make_inventory, make_outcome) -> None:
    with open_store(url) as store:
        store.begin_run(make_run(), make_inventory())

        def half(at: Statements) -> None:
            at.rows("UPDATE run SET profile = 'changed'")
            raise RuntimeError("half way")

        with pytest.raises(RuntimeError):
            store.transaction(half)
        with pytest.raises(UsageError, match="already in it"):
            store.begin_run(make_run(), make_inventory())
        assert store.load("abcd2345").run == make_run()


def test_reading_sees_one_state_while_another_process_writes(
    url: str, path: Path, make_run, make_inventory, make_outcome
) -> None:
    with open_store(str(path)) as writer, open_store(url) as reader:
        writer.begin_run(make_run(), make_inventory())

        def look(at: Statements) -> list[object]:
            before = at.rows("SELECT count(*) FROM outcome")
            writer.save_outcome("abcd2345", make_outcome())
            return [before, at.rows("SELECT count(*) FROM outcome")]

        assert reader._database.read(look) == [[(0,)], [(0,)]]
        assert len(reader.load("abcd2345").outcomes) == 1


def test_four_processes_make_one_store_at_once(url: str) -> None:
    code = "import sys; from k3gate.store import open_store; print(len(open_store(sys.argv[1]).runs()))"
    command = [sys.executable, "-c", code, url]
    all_four = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(4)
    ]
    assert [process.communicate() for process in all_four] == [("0\n", "")] * 4


def test_what_is_no_store_behind_a_url(tmp_path: Path, url: str, path: Path) -> None:
    assert "no store" in refusal(url, create=False)
    assert not path.exists()
    assert "names no file" in refusal("sqlite://")
    assert "cannot be created" in refusal(f"sqlite:///{tmp_path}/none/x.sqlite")
    path.write_text("a letter to a friend " * 200)
    assert "not a k3gate store" in refusal(url)
    path.unlink()
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE bookmarks (url TEXT)")
    other.close()
    assert "another program" in refusal(url)


def test_a_password_in_the_url_is_not_shown() -> None:
    """Where no driver is installed the URL is refused; where one is, nobody listens on this port."""
    line = refusal("postgresql://user:geheim@127.0.0.1:1/runs")
    assert "geheim" not in line


@pytest.mark.case("STO-02")
def test_a_full_disk_behind_a_url_sto_02(
    url: str, path: Path, make_run, make_inventory, make_outcome
) -> None:
    """STO-02: the same words as for a path, and the rows before it stay."""
    with open_store(url) as store:
        store.begin_run(make_run(), make_inventory())

        def fill(at: Statements) -> None:
            (pages,) = at.rows("PRAGMA page_count")[0]
            at.rows(f"PRAGMA max_page_count = {pages}")
            at.many(
                "INSERT INTO subject (digest, kind) VALUES (:digest, :kind)",
                [{"digest": f"{number}", "kind": "x" * 1000} for number in range(100)],
            )

        with pytest.raises(StorageError) as caught:
            store.transaction(fill)
        assert f"no space left in {path.parent}" in str(caught.value)
        assert store.load("abcd2345").run == make_run()
