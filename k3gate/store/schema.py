"""The version of the tables: read first, and Alembic imported only where a migration is due."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k3gate.errors import K3GateError, UsageError
from k3gate.store.database import Database, SQLiteDatabase, Statements

if TYPE_CHECKING:
    from sqlalchemy import Connection

KNOWN = ("0001", "0002", "0003")
"""All revisions of this version of k3gate, oldest first; a test compares them with the migrations."""


def prepare(database: Database) -> None:
    """Bring the tables of `database` to this version; UsageError where they are newer or another program's."""
    from k3gate import __version__

    found = database.read(_version) if _has_tables(database) else None
    if found == KNOWN[-1]:
        return
    if found is not None and found not in KNOWN:
        raise UsageError(
            f"store {database.name} has schema {found}, which is newer than {KNOWN[-1]} of k3gate {__version__}: "
            "upgrade k3gate, or use another store with --store"
        )
    _migrate(database)


def _has_tables(database: Database) -> bool:
    if not isinstance(database, SQLiteDatabase):
        from sqlalchemy import inspect

        from k3gate.store.engine import EngineDatabase

        assert isinstance(database, EngineDatabase)
        tables = set(database.migrate(lambda connection: inspect(connection).get_table_names()))
    else:
        names = database.read(lambda at: at.rows("SELECT name FROM sqlite_master WHERE type = 'table'"))
        tables = {row[0] for row in names}
    if not tables:
        return False
    if "alembic_version" not in tables or not tables >= {"run", "outcome", "evaluation"}:
        raise UsageError(
            f"{database.name} is a database of another program: name another file with --store or K3GATE_STORE"
        )
    return True


def _version(at: Statements) -> str | None:
    versions = at.rows("SELECT version_num FROM alembic_version")
    return str(versions[0][0]) if versions else None


def _migrate(database: Database) -> None:
    from sqlalchemy import create_engine, event
    from sqlalchemy.pool import NullPool

    from k3gate.store.engine import EngineDatabase

    if isinstance(database, EngineDatabase):
        try:
            database.migrate(upgrade)
        except K3GateError:
            # Another process may have made the same tables first.
            if not _has_tables(database) or database.read(_version) != KNOWN[-1]:
                raise
        return
    assert isinstance(database, SQLiteDatabase)
    engine = create_engine("sqlite://", creator=database.open, poolclass=NullPool)
    # One writer from the first statement on, so that two processes that make one store do not collide.
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))

    def work() -> None:
        from sqlalchemy.exc import DBAPIError

        try:
            with engine.begin() as connection:
                upgrade(connection)
        except DBAPIError as error:
            raise (error.orig or error) from error

    database.guarded(work)


def upgrade(connection: Connection) -> None:
    """Run all migrations that `connection`'s database lacks, in its transaction."""
    import logging

    from alembic import command
    from alembic.config import Config

    logging.getLogger("alembic").setLevel(logging.WARNING)
    config = Config()
    config.set_main_option("script_location", "k3gate.store:migrations")
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
