"""Any database that an SQLAlchemy URL names, with the same statements as SQLite."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError

from k3gate.documents import printable
from k3gate.errors import K3GateError, StorageError, UsageError
from k3gate.store.database import BUSY_SECONDS, Row, Statements, translate

T = TypeVar("T")


class EngineStatements:
    """Statements on a connection of SQLAlchemy."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def rows(self, sql: str, **parameters: Any) -> list[Row]:
        """See `Statements`."""
        result = self._connection.execute(text(sql), parameters)
        return [tuple(row) for row in result] if result.returns_rows else []

    def many(self, sql: str, parameters: Sequence[Mapping[str, Any]]) -> None:
        """See `Statements`."""
        self._connection.execute(text(sql), [dict(row) for row in parameters])


class EngineDatabase:
    """A database behind an SQLAlchemy engine. `file`: that of an SQLite URL, None for every other database."""

    def __init__(self, url: str, *, create: bool = True) -> None:
        self.notices: list[str] = []
        try:
            parsed = make_url(url)
            self.name = printable(parsed.render_as_string(hide_password=True))
            self._writing = create_engine(parsed)
        except (SQLAlchemyError, ImportError, TypeError, ValueError) as error:
            raise UsageError(
                f"store URL cannot be used ({_line(error)}): give a path, or a URL whose driver is installed"
            ) from error
        self._reading = self._writing
        self.file: Path | None = None
        if parsed.get_backend_name() == "sqlite":
            if parsed.database in (None, "", ":memory:"):
                raise UsageError(f"store {self.name} names no file and would be lost: give a path")
            self.file = Path(str(parsed.database))
            if not create and not self.file.exists():
                raise UsageError(f"there is no store {self.name}: make a run first (k3gate run)")
            self._reading = self._writing.execution_options(k3gate_begin="BEGIN")
            event.listen(self._writing, "connect", _sqlite_settings)
            event.listen(self._writing, "begin", _sqlite_begin)
        elif parsed.get_backend_name() in ("postgresql", "mysql", "mariadb"):
            # One snapshot for all statements of a transaction; the other levels see each commit of others.
            self._reading = self._writing.execution_options(isolation_level="REPEATABLE READ")

    def read(self, work: Callable[[Statements], T]) -> T:
        """See `Database`."""
        return self._run(self._reading, lambda connection: work(EngineStatements(connection)), reading=True)

    def write(self, work: Callable[[Statements], T]) -> T:
        """See `Database`."""
        return self._run(self._writing, lambda connection: work(EngineStatements(connection)))

    def migrate(self, work: Callable[[Connection], T]) -> T:
        """Look at the schema or change it, in one transaction."""
        return self._run(self._writing, work, reading=True)

    def _run(self, engine: Engine, work: Callable[[Connection], T], *, reading: bool = False) -> T:
        try:
            with engine.begin() as connection:
                return work(connection)
        except SQLAlchemyError as error:
            raise self._translate(error, reading) from error

    def _translate(self, error: SQLAlchemyError, reading: bool) -> K3GateError:
        cause = (error.orig if isinstance(error, DBAPIError) else None) or error
        if self.file is not None and isinstance(cause, Exception):
            return translate(cause, self.file, opening=reading)
        if isinstance(error, IntegrityError):
            return UsageError(
                f"store {self.name}: {_line(cause)}: the run is not in this store, or is already in it"
            )
        return (UsageError if reading else StorageError)(f"store {self.name}: {_line(cause)}")

    def close(self) -> None:
        """See `Database`."""
        self._writing.dispose()


def _sqlite_settings(connection: Any, _: Any) -> None:
    # The driver's own transactions leave out DDL and reading; `_sqlite_begin` makes ours.
    connection.isolation_level = None
    for setting in ("foreign_keys = ON", "synchronous = FULL", f"busy_timeout = {int(BUSY_SECONDS * 1e3)}"):
        connection.execute(f"PRAGMA {setting}")


def _sqlite_begin(connection: Connection) -> None:
    connection.exec_driver_sql(connection.get_execution_options().get("k3gate_begin", "BEGIN IMMEDIATE"))


def _line(error: BaseException) -> str:
    return printable(" ".join(str(error).split())[:300])
