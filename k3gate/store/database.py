"""Statements on a database: one small interface, SQLite directly and every other one through SQLAlchemy.

The statements are portable SQL with `:name` parameters, the same for both. SQLite is driven through the
standard library because importing SQLAlchemy takes longer than judging a stored run may take in all; its
models and Alembic own the schema, and it drives what an SQLAlchemy URL names (`engine`).
"""

from __future__ import annotations

import errno
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from k3gate.documents import printable
from k3gate.errors import K3GateError, StorageError, UsageError

T = TypeVar("T")
Row = tuple[Any, ...]
Connect = Callable[[str], sqlite3.Connection]

BUSY_SECONDS = 15.0


class Statements(Protocol):
    """What may be done inside a transaction."""

    def rows(self, sql: str, **parameters: Any) -> list[Row]:
        """All rows of a statement."""

    def many(self, sql: str, parameters: Sequence[Mapping[str, Any]]) -> None:
        """One statement for many sets of parameters."""


class Database(Protocol):
    """Transactions on one database. `name` is what messages call it; `notices` say what a user must know."""

    name: str
    notices: list[str]

    def read(self, work: Callable[[Statements], T]) -> T:
        """The result of `work` on one consistent snapshot."""

    def write(self, work: Callable[[Statements], T]) -> T:
        """The result of `work` in one transaction: all of it is stored, or nothing. `work` may run twice."""

    def close(self) -> None:
        """Let go of the database."""


def insert(at: Statements, table: str, **row: Any) -> None:
    """Add one row; the names are ours and never a user's."""
    at.rows(_insert_sql(table, row), **row)


def insert_many(at: Statements, table: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Add rows that all have the same columns."""
    listed = list(rows)
    if listed:
        at.many(_insert_sql(table, listed[0]), listed)


def insert_with_id(at: Statements, table: str, **row: Any) -> int:
    """Add one row and give back the id that the database chose."""
    return int(at.rows(_insert_sql(table, row) + " RETURNING id", **row)[0][0])


def update(at: Statements, table: str, key: Any, **row: Any) -> None:
    """Set columns of the row whose `id` is `key`."""
    columns = ", ".join(f"{name} = :{name}" for name in row)
    at.rows(f"UPDATE {table} SET {columns} WHERE id = :key", key=key, **row)


def _insert_sql(table: str, row: Mapping[str, Any]) -> str:
    return f"INSERT INTO {table} ({', '.join(row)}) VALUES ({', '.join(':' + name for name in row)})"


class SQLiteStatements:
    """Statements on a connection of the standard library."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def rows(self, sql: str, **parameters: Any) -> list[Row]:
        """See `Statements`."""
        return self._connection.execute(sql, parameters).fetchall()

    def many(self, sql: str, parameters: Sequence[Mapping[str, Any]]) -> None:
        """See `Statements`."""
        self._connection.executemany(sql, parameters)


class SQLiteDatabase:
    """An SQLite file. Write-ahead log where the file system allows it, else the rollback journal, and a notice.

    Committed work survives a kill and a power cut (synchronous FULL).
    """

    def __init__(self, path: Path, *, network: str | None = None, connect: Connect | None = None) -> None:
        self.path = path
        self.name = str(path)
        self.notices: list[str] = []
        self._connect = connect or _connect
        self._wal = False
        try:
            self._connection = self.open()
            # Reads the header, so that a file that is no database is found out before anything is set.
            self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if network is not None:
                self._use_rollback_journal(f"{path.parent} is on a network file system ({network})")
            else:
                self._use_wal()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise translate(error, self.path, opening=True) from error

    def open(self) -> sqlite3.Connection:
        """A new connection with our settings, in autocommit mode."""
        connection = self._connect(str(self.path))
        connection.isolation_level = None
        for setting in (
            "foreign_keys = ON",
            "synchronous = FULL",
            f"busy_timeout = {int(BUSY_SECONDS * 1e3)}",
        ):
            connection.execute(f"PRAGMA {setting}")
        return connection

    def _use_wal(self) -> None:
        try:
            mode = self._connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        except sqlite3.OperationalError as error:
            if _is_read_only(error):
                raise
            self._use_rollback_journal(f"the write-ahead log was refused ({error})")
            return
        if mode == "wal":
            self._wal = True
        else:
            self._use_rollback_journal("the file system does not support the write-ahead log")

    def _use_rollback_journal(self, why: str) -> None:
        self._wal = False
        self._connection.execute("PRAGMA journal_mode = DELETE").fetchone()
        self.notices.append(f"{why}: the store uses SQLite's rollback journal, so only one run at a time")

    def read(self, work: Callable[[Statements], T]) -> T:
        """See `Database`."""
        return self.guarded(lambda: self._snapshot(work), opening=True)

    def write(self, work: Callable[[Statements], T]) -> T:
        """See `Database`. An I/O error while the write-ahead log is on leads to one try without it."""
        return self.guarded(lambda: self._transaction(work))

    def guarded(self, work: Callable[[], T], *, opening: bool = False) -> T:
        """`work` with our errors for SQLite's, and once more on the rollback journal if WAL breaks it."""
        try:
            try:
                return work()
            except sqlite3.OperationalError as error:
                if not self._wal or "disk i/o error" not in str(error).lower() or free_bytes(self.path) == 0:
                    raise
                self._leave_wal(error)
                return work()
        except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
            raise translate(error, self.path, opening=opening) from error

    def _leave_wal(self, error: sqlite3.Error) -> None:
        self._connection.close()
        self._connection = self.open()
        try:
            self._use_rollback_journal(f"the write-ahead log does not work here ({error})")
        except sqlite3.Error:
            raise error from None

    def _snapshot(self, work: Callable[[Statements], T]) -> T:
        self._connection.execute("BEGIN")
        try:
            return work(SQLiteStatements(self._connection))
        finally:
            # After some errors SQLite has rolled back by itself, and a second time would hide the error.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def _transaction(self, work: Callable[[Statements], T]) -> T:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            result = work(SQLiteStatements(self._connection))
            self._connection.execute("COMMIT")
        except BaseException:
            # A full disk makes SQLite roll back by itself; then there is nothing left to roll back.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        return result

    def close(self) -> None:
        """See `Database`."""
        self._connection.close()


def _connect(path: str) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=BUSY_SECONDS)


def free_bytes(path: Path) -> int | None:
    """Bytes that this process may still write beside `path`; None where that cannot be told."""
    try:
        return shutil.disk_usage(path.parent).free
    except OSError:
        return None


_DAMAGE = ("malformed", "could not decode", "no such column", "no such table")


def _is_read_only(error: sqlite3.Error) -> bool:
    return "readonly" in str(error) or "unable to open" in str(error)


def translate(error: Exception, path: Path, *, opening: bool = False) -> K3GateError:
    """The error of ours for one of SQLite or of the system; other errors keep their text."""
    text = printable(" ".join(str(error).split())[:200])
    lower = text.lower()
    if isinstance(error, sqlite3.IntegrityError | sqlite3.ProgrammingError):
        return UsageError(f"store {path}: {text}: the run is not in this store, or is already in it")
    if "is full" in lower or (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)):
        free = free_bytes(path)
        left = "unknown" if free is None else f"{free:,}"
        return StorageError(
            f"no space left in {path.parent} ({left} bytes free): what was stored is intact; free some space there, "
            "then `k3gate run --resume`"
        )
    if "not a database" in lower:
        return UsageError(f"{path} is not a k3gate store: name another file with --store or K3GATE_STORE")
    if isinstance(error, UnicodeDecodeError) or any(word in lower for word in _DAMAGE):
        return UsageError(
            f"store {path} is damaged ({text}): recover it with `sqlite3 {path} .recover`, or use another --store"
        )
    if "readonly" in lower or "unable to open" in lower or isinstance(error, PermissionError):
        reason = "cannot be written" if path.exists() else "cannot be created"
        kind = UsageError if opening else StorageError
        return kind(f"store {path} {reason} ({text}): use a writable place with --store or K3GATE_STORE")
    if "locked" in lower or "busy" in lower:
        return StorageError(
            f"store {path} has been locked by another process for {BUSY_SECONDS:.0f} s: let it end, then try again"
        )
    kind = UsageError if opening else StorageError
    return kind(f"store {path}: {text}")
