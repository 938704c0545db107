"""A database that holds a store: SQLite in a file by default, PostgreSQL by URL.

All writing goes through one connection, one transaction at a time. A write that fails drops the
connection; the next one makes another, so that a database that comes back is used again.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from wattherd.errors import UserError
from wattherd.store import lock
from wattherd.store.entry import StoreFailure
from wattherd.store.tables import SCHEMA, VERSION_TABLE

JOURNAL_FILE = "journal.sqlite"
LOCK_WAIT_S = 5.0
LOG_PAGES = 16_000
"""Pages of the write-ahead log (64 MB) after which a writer tidies up if nobody else has."""
POSTGRES: dict[str, Any] = {
    "connect_timeout": 5,
    "application_name": "wattherd",
    # A server that is gone without a word is noticed within seconds, not hours.
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
ROOM_BYTES = 1 << 18
_MIGRATIONS = Path(__file__).parent / "migrations"


class Database:
    """The database of one store, its tables up to date.

    `sole` takes the right to add entries, which one process at a time can have.
    """

    def __init__(self, url: str, *, sole: bool = True) -> None:
        """Connect, and bring the tables up to date.

        Raises:
            UserError: it cannot be opened, is in use, or was written by a later version.
        """
        self.url = _shown(url)
        self.sole = sole
        self._engine = _engine(url)
        self._writing = threading.Lock()
        self._writer: sa.Connection | None = None
        self._synced: bool | None = None
        """Whether the writer's commits wait for the disk; None if that has not been said yet."""
        self._file_lock: lock.FileLock | None = None
        try:
            self._begin()
        except UserError:
            self.close()
            raise
        except lock.InUse as who:
            self.close()
            hint = "stop the other service, or give this one a store of its own"
            raise UserError(f"in use by {who}", where=self.url, hint=hint) from None
        except (SQLAlchemyError, OSError) as error:
            self.close()
            hint = "is it there, reachable and writable?"
            if self.path is not None and _is_full(self.path.parent):
                hint = "its disk is full: give it some room"
            raise UserError(f"cannot be opened: {why(error)}", where=self.url, hint=hint) from None

    @property
    def is_sqlite(self) -> bool:
        """Whether it is a file of our own."""
        return self._engine.dialect.name == "sqlite"

    @property
    def path(self) -> Path | None:
        """The file of an SQLite database."""
        name = self._engine.url.database
        return Path(name) if self.is_sqlite and name and name != ":memory:" else None

    def _begin(self) -> None:
        if self.sole and self.path is not None:
            self._file_lock = lock.FileLock(self.path)
            self.path.touch(mode=0o600)  # what jobs are told is not for everybody on the machine
        with self._engine.connect() as connection:
            version = _version(connection)
        if version is not None and version > SCHEMA:
            raise UserError(
                f"was written by a later version of wattherd (schema {version}; this one knows"
                f" {SCHEMA})",
                where=self.url,
                hint="use that version, or import an export of it into an empty store",
            )
        if version == SCHEMA:
            if self.sole:
                self._connected()
        elif self.sole:
            _migrate(self._connected(), version)
        else:
            hint = "no service has used it yet" if version is None else "start a service on it once"
            raise UserError(f"has no tables of schema {SCHEMA}", where=self.url, hint=hint)

    @contextlib.contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """A connection that sees one moment of the store.

        Raises:
            StoreFailure: it cannot be read.
        """
        try:
            with self._engine.connect() as connection, connection.begin():
                yield connection
        except SQLAlchemyError as error:
            raise StoreFailure(why(error)) from None

    @contextlib.contextmanager
    def writing(self, *, durable: bool = True) -> Iterator[sa.Connection]:
        """A transaction, on disk once this returns; or, if not `durable`, with the next one.

        Raises:
            StoreFailure: nothing is kept, unless the commit itself failed: see `certain`.
        """
        with self._writing:
            committing = False
            try:
                connection = self._connected()
                self._sync(connection, durable=durable)
                transaction = connection.begin()
                try:
                    yield connection
                    committing = True
                    transaction.commit()
                except BaseException:
                    with contextlib.suppress(SQLAlchemyError):
                        transaction.rollback()
                    raise
            except (SQLAlchemyError, lock.InUse) as error:
                self._disconnect()
                raise StoreFailure(why(error), certain=not committing) from None

    def _connected(self) -> sa.Connection:
        if self._writer is None:
            connection = self._engine.connect().execution_options(wattherd_writes=True)
            try:
                if self.sole and not self.is_sqlite:
                    lock.take_advisory(connection)
            except BaseException:
                connection.close()
                raise
            self._writer = connection
        return self._writer

    def _sync(self, connection: sa.Connection, *, durable: bool) -> None:
        """With a write-ahead log, commits without a sync are lost together or not at all."""
        if self.is_sqlite and durable is not self._synced:
            word = "FULL" if durable else "NORMAL"
            cursor = connection.connection.cursor()
            cursor.execute(f"PRAGMA synchronous={word}")
            cursor.close()
            self._synced = durable

    def tidy(self) -> None:
        """Move what is in the write-ahead log to its place, while others go on writing.

        Raises:
            StoreFailure: it is not done.
        """
        if not self.is_sqlite:
            return
        try:
            connection = self._engine.raw_connection()
            try:
                connection.cursor().execute("PRAGMA wal_checkpoint(PASSIVE)").close()
            finally:
                connection.close()
        except (SQLAlchemyError, sqlite3.Error) as error:
            raise StoreFailure(why(error)) from None

    def _disconnect(self) -> None:
        connection, self._writer, self._synced = self._writer, None, None
        if connection is not None:
            with contextlib.suppress(SQLAlchemyError):
                connection.invalidate()
                connection.close()

    def shrink(self) -> None:
        """Give back the room of what was deleted.

        Raises:
            StoreFailure: that is not possible now.
        """
        if not self.is_sqlite:
            return  # PostgreSQL does so by itself
        with self._writing:
            try:
                connection = self._connected().connection.driver_connection
                if connection is not None:
                    connection.execute("VACUUM")
                    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            except (SQLAlchemyError, sqlite3.Error) as error:
                raise StoreFailure(why(error)) from None

    def size_bytes(self) -> int:
        """Bytes on disk.

        Raises:
            StoreFailure: it cannot be read.
        """
        if self.path is not None:
            beside = (self.path, self.path.with_name(f"{self.path.name}-wal"))
            return sum(path.stat().st_size for path in beside if path.exists())
        with self.reading() as connection:
            size = sa.text("SELECT pg_database_size(current_database())")
            return int(connection.scalar(size) or 0)

    def close(self) -> None:
        """Let go of the database."""
        with self._writing:
            self._disconnect()
        self._engine.dispose()
        if self._file_lock is not None:
            self._file_lock.release()
            self._file_lock = None


def in_folder(folder: Path) -> str:
    """The URL of the store in a folder of its own."""
    return f"sqlite:///{folder / JOURNAL_FILE}"


def why(error: BaseException) -> str:
    """An error of the database in one line."""
    text = str(getattr(error, "orig", None) or error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def _shown(url: str) -> str:
    try:
        return sa.make_url(url).render_as_string(hide_password=True)
    except SQLAlchemyError:
        return url


def _engine(url: str) -> sa.Engine:
    """An engine as wanted.

    Raises:
        UserError: no such kind of database here.
    """
    kinds = "sqlite:///FILE or postgresql+psycopg://USER@HOST/DATABASE"
    try:
        name = sa.make_url(url).get_backend_name()
        if name == "postgresql":
            return sa.create_engine(
                url,
                connect_args=POSTGRES,
                pool_pre_ping=True,
                isolation_level="REPEATABLE READ",
            )
        if name != "sqlite":
            raise UserError(f"is no place for a store: {name}", where=_shown(url), hint=kinds)
        engine = sa.create_engine(url)
    except SQLAlchemyError as error:
        raise UserError(f"is no database URL: {why(error)}", where=url, hint=kinds) from None
    except ImportError as missing:
        hint = 'pip install "wattherd[postgres]"'
        raise UserError(f"needs {missing.name}", where=_shown(url), hint=hint) from None
    sa.event.listen(engine, "connect", _as_wanted)
    sa.event.listen(engine, "begin", _begin_sqlite)
    return engine


def _as_wanted(connection: Any, record: object) -> None:
    """Readers do not block writers; a commit is on disk when it returns."""
    del record
    connection.isolation_level = None  # transactions begin where we say
    cursor = connection.cursor()
    for pragma in (
        f"busy_timeout={LOCK_WAIT_S * 1000:.0f}",
        "journal_mode=WAL",
        "synchronous=FULL",
        f"wal_autocheckpoint={LOG_PAGES}",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_sqlite(connection: sa.Connection) -> None:
    """A writer asks for the lock at once: a reader that becomes one could not wait for it."""
    writes = connection.get_execution_options().get("wattherd_writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _is_full(folder: Path) -> bool:
    """Whether there is no room on a disk for the files that SQLite makes beside a database."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return False
    return found.f_bavail * found.f_frsize < ROOM_BYTES


def _version(connection: sa.Connection) -> str | None:
    """Number of the latest migration that was run; the first version had no table for it."""
    tables = sa.inspect(connection).get_table_names()
    if VERSION_TABLE in tables:
        query = sa.text(f"SELECT version_num FROM {VERSION_TABLE}")  # noqa: S608 - our own word
        found = connection.scalar(query)
        return None if found is None else str(found)
    return "0001" if "entries" in tables else None


def _migrate(connection: sa.Connection, version: str | None) -> None:
    """Run all migrations after `version`, all or none."""
    from alembic import command
    from alembic.config import Config

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(_MIGRATIONS))
    with connection.begin():
        if version == "0001":
            command.stamp(config, version)
        command.upgrade(config, "head")
