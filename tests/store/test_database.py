"""The file itself: journals, full disks, kills, damage, versions, and who may write."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from k3gate.errors import StorageError, UsageError
from k3gate.mounts import is_network
from k3gate.records import RunStatus, Sample
from k3gate.store import Store, open_store, schema
from k3gate.store.database import SQLiteDatabase
from k3gate.store.filesystems import filesystem_type

MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:40 / /home rw shared:2 - nfs4 server:/home rw,vers=4.2
31 30 0:41 / /home/anna/local rw - xfs /dev/sdb1 rw
32 22 0:42 / /mnt/my\\040share rw master:3 - cifs //server/share rw
33 22 0:43 / /mnt/ssh rw - fuse.sshfs host:/ rw
34 22 0:44 / /tmp rw - ext4 /dev/sdc1 rw
35 34 0:45 / /tmp rw - tmpfs tmpfs rw
"""


class Stubborn(sqlite3.Connection):
    """A real connection that fails where its class says so. `fail`: (word of the statement, error text)."""

    fail: tuple[str, str] | None = None
    seen: int = 0

    def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
        self._maybe(sql)
        return super().execute(sql, *arguments)

    def executemany(self, sql: str, rows: Any) -> sqlite3.Cursor:
        self._maybe(sql)
        return super().executemany(sql, rows)

    def cursor(self, factory: Any = None) -> sqlite3.Cursor:
        connection = self

        class Cursor(sqlite3.Cursor):
            def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
                connection._maybe(sql)
                return super().execute(sql, *arguments)

        return super().cursor(Cursor)

    def _maybe(self, sql: str) -> None:
        kind = type(self)
        if kind.fail is not None and kind.fail[0] in sql:
            kind.seen += 1
            raise sqlite3.OperationalError(kind.fail[1])


class BrokenLog(Stubborn):
    """WAL is accepted, and every write then fails until the journal is another one."""

    def _maybe(self, sql: str) -> None:
        if any(word in sql for word in ("CREATE", "INSERT")):
            mode = sqlite3.Connection.execute(self, "PRAGMA journal_mode").fetchone()[0]
            if mode == "wal":
                raise sqlite3.OperationalError("disk I/O error")


def journal(path: Path) -> str:
    connection = sqlite3.connect(path)
    try:
        return str(connection.execute("PRAGMA journal_mode").fetchone()[0])
    finally:
        connection.close()


def stub_store(path: Path, kind: type[sqlite3.Connection]) -> Store:
    database = SQLiteDatabase(path, connect=lambda where: sqlite3.connect(where, factory=kind))
    schema.prepare(database)
    return Store(database)


# --- journals --------------------------------------------------------------------------------------------


def test_on_a_local_file_system_the_write_ahead_log_is_used(store: Store, path: Path) -> None:
    assert store.notices == ()
    assert journal(path) == "wal"


@pytest.mark.case("STO-01")
@pytest.mark.parametrize(
    ("place", "kind", "network"),
    [
        ("/home/bo/runs.sqlite", "nfs4", True),
        ("/home/anna/local/runs.sqlite", "xfs", False),
        ("/mnt/my share/runs.sqlite", "cifs", True),
        ("/mnt/ssh/x", "fuse.sshfs", True),
        ("/tmp/x", "tmpfs", False),
        ("/var/lib/x", "ext4", False),
        ("/homework/x", "ext4", False),
    ],
)
def test_the_file_system_of_a_path_is_found_sto_01(place: str, kind: str, network: bool) -> None:
    """STO-01: nfs4, cifs, fuse.sshfs are network file systems; the deepest and topmost mount counts."""
    assert filesystem_type(Path(place), MOUNTS) == kind
    assert is_network(kind) is network


def test_a_path_without_known_mounts_has_no_file_system() -> None:
    assert filesystem_type(Path("/x"), "") is None
    assert filesystem_type(Path("/x"), "garbage\n1 2 3 - \n") is None
    assert not is_network(None)


@pytest.mark.case("STO-01")
def test_a_network_file_system_gets_the_rollback_journal_sto_01(
    path: Path, monkeypatch: pytest.MonkeyPatch, make_run, make_inventory
) -> None:
    """STO-01: the type is checked, the journal is the old one, the user is told, runs are kept."""
    monkeypatch.setattr(
        "k3gate.store.filesystems.read_mountinfo", lambda: f"1 0 0:1 / {path.parent} rw - nfs4 server:/ rw\n"
    )
    with open_store(str(path)) as store:
        store.begin_run(make_run(), make_inventory())
        assert "nfs4" in store.notices[0]
        assert "rollback journal" in store.notices[0]
    assert journal(path) == "delete"


@pytest.mark.case("STO-01")
def test_a_write_ahead_log_that_breaks_on_the_first_write_is_left_once_sto_01(
    path: Path, make_run, make_inventory
) -> None:
    """STO-01: WAL pragma says wal, the next CREATE raises 'disk I/O error': the store works without it."""
    store = stub_store(path, BrokenLog)
    store.begin_run(make_run(), make_inventory())
    assert store.load("abcd2345").run == make_run()
    assert len(store.notices) == 1
    assert "disk I/O error" in store.notices[0]
    store.close()
    assert journal(path) == "delete"


@pytest.mark.case("STO-01")
def test_earlier_results_survive_the_change_of_journal_and_other_errors_keep_their_text_sto_01(
    path: Path, make_run, make_inventory, make_outcome
) -> None:
    """STO-01: results written with WAL are there afterwards; an I/O error that stays is told in its words."""
    with open_store(str(path)) as store:
        store.begin_run(make_run(), make_inventory())
        store.save_outcome("abcd2345", make_outcome())

    class Failing(Stubborn):
        fail = ("INSERT", "disk I/O error")

    broken = stub_store(path, Failing)
    with pytest.raises(StorageError, match="disk I/O error"):
        broken.save_outcome("abcd2345", make_outcome("second"))
    assert Failing.seen == 2, "once with WAL, once without, never again"
    assert broken.load("abcd2345").outcomes == (make_outcome(),)
    broken.close()

    class Odd(Stubborn):
        fail = ("INSERT", "some other trouble 42")

    odd = stub_store(path, Odd)
    with pytest.raises(StorageError, match="some other trouble 42"):
        odd.save_outcome("abcd2345", make_outcome("second"))
    assert Odd.seen == 1
    odd.close()


# --- full disks ------------------------------------------------------------------------------------------


@pytest.mark.case("STO-02")
def test_a_disk_that_is_full_at_sample_500_of_1000_sto_02(
    path: Path, make_run, make_inventory, make_outcome
) -> None:
    """STO-02: SQLite itself runs out of pages; one error that names the folder, no retry, the rest is intact."""
    store = open_store(str(path))
    store.begin_run(make_run(), make_inventory())
    store.save_outcome("abcd2345", make_outcome())
    database = store._database
    assert isinstance(database, SQLiteDatabase)
    pages = database._connection.execute("PRAGMA page_count").fetchone()[0]
    database._connection.execute(f"PRAGMA max_page_count = {pages + 3}")
    metric = make_outcome().metrics[0]
    large = attrs.evolve(metric, samples=tuple(Sample(float(n), 0, 1, float(n)) for n in range(1000)))
    with pytest.raises(StorageError) as caught:
        store.save_outcome("abcd2345", make_outcome("second", metrics=(large,)))
    assert str(path.parent) in str(caught.value)
    assert "bytes free" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert store.load("abcd2345").outcomes == (make_outcome(),)
    database._connection.execute("PRAGMA max_page_count = 1000000")
    store.save_outcome("abcd2345", make_outcome("second", metrics=(large,)))
    assert len(store.load("abcd2345").outcomes[1].metrics[0].samples) == 1000
    store.close()


@pytest.mark.case("STO-02")
def test_a_full_disk_is_not_tried_again_sto_02(path: Path, make_run, make_inventory, make_outcome) -> None:
    """STO-02: 'database or disk is full' is raised once and passed on."""
    with open_store(str(path)) as store:
        store.begin_run(make_run(), make_inventory())

    class Full(Stubborn):
        fail = ("INSERT INTO sample", "database or disk is full")

    full = stub_store(path, Full)
    with pytest.raises(StorageError, match="no space left"):
        full.save_outcome("abcd2345", make_outcome())
    assert Full.seen == 1
    assert full.load("abcd2345").outcomes == ()
    full.close()


# --- places that cannot be used --------------------------------------------------------------------------


@pytest.fixture
def unprivileged() -> Iterator[Path]:
    """A folder of a user who is not root, as whom the test acts."""
    folder = Path(tempfile.mkdtemp())
    nobody = 65534 if os.geteuid() == 0 else os.geteuid()
    if os.geteuid() == 0:
        os.chown(folder, nobody, nobody)
    before = os.geteuid()
    os.seteuid(nobody)
    try:
        yield folder
    finally:
        os.seteuid(before)
        folder.chmod(0o700)
        shutil.rmtree(folder)


def refusal(location: Path | str, **options: Any) -> str:
    with pytest.raises(UsageError) as caught:
        open_store(str(location), **options).close()
    line = str(caught.value)
    assert "\n" not in line
    return line


def test_a_folder_that_cannot_be_written(unprivileged: Path) -> None:
    unprivileged.chmod(0o500)
    assert str(unprivileged / "a" / "runs.sqlite") in refusal(unprivileged / "a" / "runs.sqlite")
    assert "writable place" in refusal(unprivileged / "runs.sqlite")


def test_a_file_that_may_not_be_read(unprivileged: Path) -> None:
    (unprivileged / "runs.sqlite").touch(0o000)
    assert "--store" in refusal(unprivileged / "runs.sqlite")


def test_a_store_that_is_read_only_can_be_read_and_not_written(
    unprivileged: Path, make_run, make_inventory, make_outcome
) -> None:
    path = unprivileged / "runs.sqlite"
    with open_store(str(path)) as store:
        store.begin_run(make_run(), make_inventory())
    path.chmod(0o400)
    with open_store(str(path)) as store:
        assert store.load("abcd2345").run == make_run()
        with pytest.raises(StorageError, match="cannot be written"):
            store.save_outcome("abcd2345", make_outcome())


def test_what_is_no_store(tmp_path: Path) -> None:
    assert "no file" in refusal(tmp_path)
    os.mkfifo(tmp_path / "fifo")
    assert "no file" in refusal(tmp_path / "fifo")
    text = tmp_path / "text"
    text.write_text("hello, this is a letter to a friend\n" * 100)
    assert "not a k3gate store" in refusal(text)
    assert text.read_text().startswith("hello")
    other = tmp_path / "other.sqlite"
    connection = sqlite3.connect(other)
    connection.execute("CREATE TABLE bookmarks (url TEXT)")
    connection.commit()
    connection.close()
    assert "another program" in refusal(other)
    assert "no store" in refusal(tmp_path / "none.sqlite", create=False)
    assert not (tmp_path / "none.sqlite").exists()


def test_a_url_that_names_no_driver() -> None:
    assert "driver" in refusal("nonsense://host/db")
    assert "secret" not in refusal("postgresql+nodriver://user:secret@host/db")


def test_a_damaged_store(path: Path, make_run, make_inventory, make_outcome) -> None:
    with open_store(str(path)) as store:
        store.begin_run(make_run(), make_inventory())
        store.save_outcome("abcd2345", make_outcome())
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(100)
        file.write(b"\xa5" * (size - 100))
    assert "damaged" in refusal(path)
    path.write_bytes(path.read_bytes()[:50])
    assert "store" in refusal(path)


def test_a_store_of_a_newer_version_is_left_alone(path: Path, store: Store) -> None:
    store.close()
    connection = sqlite3.connect(path)
    connection.execute("UPDATE alembic_version SET version_num = '0042'")
    connection.commit()
    connection.close()
    before = path.read_bytes()
    line = refusal(path)
    assert "0042" in line
    assert schema.KNOWN[-1] in line
    assert "upgrade k3gate" in line
    assert path.read_bytes() == before


def test_where_the_store_is_by_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    with open_store() as store:
        assert store.location == str(tmp_path / "data" / "k3gate" / "runs.sqlite")
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    with open_store() as store:
        assert store.location == str(tmp_path / ".local/share/k3gate/runs.sqlite")
    monkeypatch.setenv("K3GATE_STORE", str(tmp_path / "named.sqlite"))
    with open_store() as store:
        assert store.location == str(tmp_path / "named.sqlite")
    with open_store(str(tmp_path / "given.sqlite")) as store:
        assert store.location == str(tmp_path / "given.sqlite")


# --- the schema ------------------------------------------------------------------------------------------


def test_the_migrations_make_what_the_models_say(path: Path, store: Store) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.config import Config
    from alembic.migration import MigrationContext
    from alembic.script import ScriptDirectory
    from sqlalchemy import create_engine

    from k3gate.store.models import Base

    engine = create_engine(f"sqlite:///{path}")
    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"compare_type": True, "compare_server_default": True}
        )
        assert compare_metadata(context, Base.metadata) == []
    engine.dispose()
    config = Config()
    config.set_main_option("script_location", "k3gate.store:migrations")
    scripts = ScriptDirectory.from_config(config)
    assert tuple(script.revision for script in scripts.walk_revisions())[::-1] == schema.KNOWN


def test_a_store_of_the_first_version_keeps_its_waivers_and_is_brought_up(
    path: Path, store: Store, make_run, make_inventory, make_waiver
) -> None:
    """Nothing stored is lost by an upgrade, and the same waiver is not taken in twice by an import."""
    from alembic import command
    from alembic.config import Config
    from sqlalchemy import create_engine

    store.begin_run(make_run(), make_inventory())
    old = store.add_waiver(make_waiver(target=None))
    store.close()
    engine = create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        config = Config()
        config.set_main_option("script_location", "k3gate.store:migrations")
        config.attributes["connection"] = connection
        command.downgrade(config, "0001")
    engine.dispose()
    with open_store(str(path)) as again:
        assert again.waivers("abcd2345") == (old,)
        assert again.add_waiver(make_waiver(target=None)).id == old.id
        new = again.add_waiver(make_waiver(target="sha256:t2"))
        assert again.waivers("abcd2345") == (old, new)


def test_the_migrations_can_be_undone(store: Store, path: Path) -> None:
    from alembic import command
    from alembic.config import Config
    from sqlalchemy import create_engine, inspect

    store.close()
    engine = create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        config = Config()
        config.set_main_option("script_location", "k3gate.store:migrations")
        config.attributes["connection"] = connection
        command.downgrade(config, "base")
        assert inspect(connection).get_table_names() == ["alembic_version"]
    engine.dispose()


def test_reading_a_store_imports_neither_sqlalchemy_nor_alembic(path: Path, store: Store) -> None:
    code = (
        "import sys; from k3gate.store import open_store; open_store(sys.argv[1]).runs(); "
        "print({'sqlalchemy', 'alembic'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


# --- kills and neighbours --------------------------------------------------------------------------------

_CHILD = """
import pickle, sys
from k3gate.store import open_store
run, inventory, outcomes = pickle.load(sys.stdin.buffer)
store = open_store(sys.argv[1])
store.begin_run(run, inventory)
for outcome in outcomes:
    store.save_outcome(run.id, outcome)
    print(outcome.case, flush=True)
sys.stdin.buffer.read()
"""


def child(path: Path, *records: Any) -> subprocess.Popen[bytes]:
    import pickle

    command = [sys.executable, "-c", _CHILD, str(path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(pickle.dumps(records))
    process.stdin.flush()
    return process


@pytest.mark.case("STO-05")
def test_a_killed_run_is_abandoned_at_the_next_start_and_keeps_what_was_saved_sto_05(
    path: Path, store: Store, make_run, make_inventory, make_outcome
) -> None:
    """STO-05: SIGKILL of a real process between two saves; a run that still runs is left alone."""
    run = make_run(status=RunStatus.RUNNING, ended=None)
    outcomes = [make_outcome("first"), make_outcome("second")]
    process = child(path, run, make_inventory(), outcomes)
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in outcomes] == [b"first\n", b"second\n"]
    store.begin_run(make_run("live2345", status=RunStatus.RUNNING), make_inventory())
    assert store.abandon_dead() == []
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert process.stdin is not None
    process.stdin.close()
    process.stdout.close()
    with open_store(str(path)) as later:
        assert later.abandon_dead() == ["abcd2345"]
        assert later.abandon_dead() == []
        record = later.load("abcd2345")
        assert record.run.status is RunStatus.ABANDONED
        assert record.outcomes == tuple(outcomes)
        # Resuming makes the resuming process the writer.
        later.update_run(run)
        assert later.abandon_dead() == []


def test_writing_goes_on_while_others_read(
    path: Path, store: Store, make_run, make_inventory, make_outcome
) -> None:
    store.begin_run(make_run(), make_inventory())
    failures: list[BaseException] = []
    counts: list[int] = []
    done = threading.Event()

    def look() -> None:
        try:
            with open_store(str(path)) as reader:
                while not done.is_set():
                    record = reader.load("abcd2345")
                    counts.append(len(record.outcomes))
                    assert all(outcome.metrics[0].samples for outcome in record.outcomes)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        for number in range(20):
            store.save_outcome("abcd2345", make_outcome(f"case{number:02d}", samples=20))
    finally:
        done.set()
        thread.join()
    assert failures == []
    assert counts == sorted(counts)
    assert len(store.load("abcd2345").outcomes) == 20


def test_two_processes_that_make_one_store_do_not_collide(path: Path) -> None:
    code = "import sys; from k3gate.store import open_store; print(len(open_store(sys.argv[1]).runs()))"
    both = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for _ in range(2)
    ]
    assert [process.communicate() for process in both] == [(b"0\n", b""), (b"0\n", b"")]
