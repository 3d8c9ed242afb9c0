"""Any database that an SQLAlchemy URL names, with the same statements as SQLite."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from sqlalchemy import Connection, create_engine, event, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError

from k3gate.errors import K3GateError, StorageError, UsageError
from k3gate.store.database import Row, Statements

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
    """A database behind an SQLAlchemy engine."""

    def __init__(self, url: str) -> None:
        self.notices: list[str] = []
        try:
            parsed = make_url(url)
            self.name = parsed.render_as_string(hide_password=True)
            self.engine = create_engine(parsed)
        except (ArgumentError, NoSuchModuleError, ModuleNotFoundError) as error:
            raise UsageError(
                f"store URL cannot be used ({_line(error)}): give a path, or a URL whose driver is installed"
            ) from error
        if parsed.get_backend_name() == "sqlite":
            event.listen(self.engine, "connect", _sqlite_settings)

    def read(self, work: Callable[[Statements], T]) -> T:
        """See `Database`."""
        return self.write(work)

    def write(self, work: Callable[[Statements], T]) -> T:
        """See `Database`."""
        try:
            with self.engine.begin() as connection:
                return work(EngineStatements(connection))
        except DBAPIError as error:
            raise self._translate(error) from error

    def migrate(self, work: Callable[[Connection], None]) -> None:
        """Change the schema in one transaction."""
        try:
            with self.engine.begin() as connection:
                work(connection)
        except DBAPIError as error:
            raise self._translate(error) from error

    def _translate(self, error: DBAPIError) -> K3GateError:
        cause = _line(error.orig or error)
        if isinstance(error.orig, Exception) and type(error.orig).__name__ == "IntegrityError":
            return UsageError(
                f"store {self.name}: {cause}: the run is not in this store, or is already in it"
            )
        return StorageError(f"store {self.name}: {cause}")

    def close(self) -> None:
        """See `Database`."""
        self.engine.dispose()


def _sqlite_settings(connection: Any, _: Any) -> None:
    connection.execute("PRAGMA foreign_keys = ON")


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
