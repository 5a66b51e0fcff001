"""The SQLite file of the metadata: durable commits, reserved space for a full disk, a checksum for each row.

Journal mode PERSIST: a commit ends with a synced write over the journal's header. DELETE would unlink the journal
without a sync of the folder, so that after a power cut it could return and undo the commit; WAL would keep commits in a
second file, which a copy of the first one lacks. A persistent journal also keeps its space on a full disk.
"""

from __future__ import annotations

import binascii
import contextlib
import os
import sqlite3
import struct
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from kbroker.common.errors import Errors, KafkaError
from kbroker.common.loggers import get_logger
from kbroker.log.checkpoints import sync_descriptor, sync_folder
from kbroker.metadata.metadata_schema import (
    CHECKED_FROM,
    MIGRATIONS,
    NEW_FILE,
    SCHEMA_VERSION,
    TABLES,
    expected_schema,
    schema_of,
    tables_of,
)

logger = get_logger(__name__)

JOURNAL_BYTES = 1 << 20  # enough for a change of 255 pages on a full disk
RESERVE_PAGES = 32  # free pages in the file, for deleting topics and lowering retention on a full disk
REFILL_PAGES = 64
SHOWN_CHARACTERS = 80
#: Errors of reading a damaged file, in which even the text of SQLite's error may not be UTF-8.
UNREADABLE = (sqlite3.Error, UnicodeDecodeError)

Value = str | int | float | bytes
Totals = dict[str, tuple[int, int]]


class MetadataError(RuntimeError):
    """The metadata file cannot be used; the message has the reason and the remedy."""


class NewerMetadataError(MetadataError):
    """The file was written by a later kbroker."""


def way_out(*folders: Path) -> str:
    """Return the remedy for a lost metadata file, given the log folders."""
    return (
        f"put the file back from a backup, or run 'kbroker log recover-metadata {' '.join(map(str, folders))}', which "
        "makes a new one from "
        "the partition folders"
    )


def row_checksum(table: str, row: Sequence[Value]) -> int:
    """Return the CRC-32 of a row with the name of its table and the types of its values."""
    parts = [table.encode()]
    for value in row:
        if isinstance(value, str):
            tag, data = b"s", value.encode()
        elif isinstance(value, bytes):
            tag, data = b"b", value
        elif isinstance(value, float):
            tag, data = b"f", struct.pack(">d", value)
        else:
            tag, data = b"i", b"%d" % value
        parts.append(b"%s%d:" % (tag, len(data)))
        parts.append(data)
    return binascii.crc32(b"".join(parts))


class MetadataFile:
    """Tables of checked rows in one file, changed in transactions.

    Each row has its checksum; ``totals`` has the number of rows and the sum of their checksums for each table, so that
    a lost row is detected too.

    Args: ``path`` of the file, None for memory; ``is_checked`` False: to read the rest of a damaged one.
    Raises: MetadataError if it cannot be used.
    Threads: any. Lock: ``lock``, a leaf, held over a transaction.
    """

    def __init__(self, path: Path | None, *, is_checked: bool = True) -> None:
        self.path = path
        self.lock = threading.Lock()
        _open_files.add(self)
        self.is_new = False
        self._is_failing = False
        self._unknown_outcome = ""
        try:
            place = ":memory:" if path is None else path
            self._db = sqlite3.connect(place, timeout=1, check_same_thread=False, isolation_level=None)
        except sqlite3.Error as error:
            raise MetadataError(f"cannot open {path}: {error}") from error
        try:
            self._open(is_checked)
        except UNREADABLE as error:
            self._db.close()
            # OperationalError: a file in use, or a full disk
            is_damaged = not isinstance(error, sqlite3.OperationalError)
            advice = f"; {way_out(path.parent)}" if path is not None and is_damaged else ""
            raise MetadataError(f"cannot use {path}: {_one_line(error)}{advice}") from error
        except BaseException:
            self._db.close()
            raise

    def _open(self, is_checked: bool) -> None:
        db = self._db
        db.execute("PRAGMA synchronous=FULL")
        db.execute("PRAGMA temp_store=MEMORY")
        db.execute("PRAGMA secure_delete=ON")  # so that a removed user's keys do not stay in free pages
        version = int(db.execute("PRAGMA user_version").fetchone()[0])  # the first read rolls back an unfinished change
        mode = str(db.execute("PRAGMA journal_mode=PERSIST").fetchone()[0])
        if self.path is not None and mode != "persist":
            raise MetadataError(f"cannot use {self.path}: its journal mode is {mode} and cannot be changed to persist")
        if version > SCHEMA_VERSION:
            raise NewerMetadataError(
                f"{self.path} has schema version {version}, this kbroker knows {SCHEMA_VERSION}: start a newer kbroker"
            )
        if version < 0:
            raise self._damage(f"its schema version is {version}")
        if version == 0:
            if db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                raise self._damage("it has tables, but no schema version")
            self.is_new = True
            return
        db.execute("BEGIN IMMEDIATE")
        db.execute(f"PRAGMA user_version={version}")  # refuse a read-only file now instead of at the first change
        db.execute("ROLLBACK")
        if version >= CHECKED_FROM and is_checked:
            self.verify()

    def complete(self, facts: Iterable[tuple[str, str]]) -> None:
        """Create the tables of a new file, with these facts, or upgrade an older one; reserve disk space.

        Each step is completed or not made at all. Raises: MetadataError, sqlite3.Error.
        """
        version = int(self._db.execute("PRAGMA user_version").fetchone()[0])
        if version == 0:
            with self._steps() as db:
                self._run(NEW_FILE)
                db.executemany("INSERT INTO facts VALUES (?, ?)", facts)
                for target in range(2, SCHEMA_VERSION + 1):
                    self._migrate(target)
        else:
            for target in range(version + 1, SCHEMA_VERSION + 1):
                with self._steps():
                    self._migrate(target)
        if 0 < version < CHECKED_FROM:
            self.verify()
        if self.path is None:
            return
        try:
            self._lengthen_journal(self.path)
            sync_folder(self.path.parent)  # makes the names of the file and its journal durable
            self._refill()
        except (OSError, sqlite3.Error) as error:
            if self.is_new:
                raise MetadataError(f"cannot write {self.path}: {error}") from error
            logger.warning("%s: no room can be kept for a full disk: %s", self.path, error)

    def _run(self, statements: str) -> None:
        for statement in statements.split(";"):
            self._db.execute(statement)

    def _migrate(self, target: int) -> None:
        self._run(MIGRATIONS[target - 2])
        if target == CHECKED_FROM:
            self._add_checksums()
        self._db.execute(f"PRAGMA user_version={target}")

    @contextmanager
    def _steps(self) -> Iterator[sqlite3.Connection]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield self._db
            self._db.execute("COMMIT")
        except BaseException:
            self._roll_back()
            raise

    def _add_checksums(self) -> None:
        db = self._db
        for table in tables_of(CHECKED_FROM):
            names = ", ".join(TABLES[table])
            rows = db.execute(f"SELECT {names} FROM {table}").fetchall()
            db.execute(f"DELETE FROM {table}")
            db.execute("INSERT INTO totals VALUES (?, 0, 0)", (table,))
            self.insert(table, rows)

    def close(self) -> None:
        """Close the file. Idempotent."""
        with self.lock:
            self._db.close()

    # ------------------------------------------------------------ reading

    def rows(self, query: str, parameters: Sequence[Value] = ()) -> list[tuple[Value, ...]]:
        """Return every row of a SELECT. Raises: KafkaError KAFKA_STORAGE_ERROR, when they cannot be read."""
        with self.lock:
            try:
                return self._db.execute(query, parameters).fetchall()
            except sqlite3.ProgrammingError:  # closed: a bug, not a failure of the disk
                raise
            except sqlite3.DatabaseError as error:
                text = f"Cannot read the metadata file: {error}"
                raise KafkaError(Errors.KAFKA_STORAGE_ERROR, text) from None

    def verify(self) -> None:
        """Check the whole file. Raises: MetadataError naming table and row of the first damage."""
        try:
            found = schema_of(self._db)
        except (*UNREADABLE, AttributeError) as error:  # a statement that is not a string
            raise self._damage(f"its list of tables cannot be read: {error}") from error
        version = int(self._db.execute("PRAGMA user_version").fetchone()[0])
        expected = expected_schema(version)
        if found != expected:
            names = sorted({str(one[1])[:SHOWN_CHARACTERS] for one in found ^ expected})
            raise self._damage(f"the definition of {', '.join(names)} is not what was written")
        totals = self._totals()
        for table in tables_of(version):
            count = checksums = 0
            for row, checksum in self._checked(table):
                if row_checksum(table, row) != checksum:
                    raise self._damage(f"table {table}, {describe(table, row)}: its checksum is wrong")
                count += 1
                checksums += checksum
            if totals.get(table) != (count, checksums):
                raise self._damage(f"table {table}: its {count} rows are not those that were written")
        try:
            problems = [str(row[0]) for row in self._db.execute("PRAGMA integrity_check(1)")]
        except UNREADABLE as error:
            problems = [str(error)]
        if problems != ["ok"]:
            raise self._damage(problems[0])

    def sound_rows(self) -> dict[str, tuple[list[tuple[Value, ...]], bool]]:
        """Return the sound rows of each table, and whether these are all its rows."""
        try:
            totals = self._totals()
        except MetadataError:
            totals = {}
        found: dict[str, tuple[list[tuple[Value, ...]], bool]] = {}
        version = int(self._db.execute("PRAGMA user_version").fetchone()[0])
        for table in TABLES:
            rows: list[tuple[Value, ...]] = []
            if version >= CHECKED_FROM and table not in tables_of(version):  # the table is newer: nothing of it is lost
                found[table] = rows, True
                continue
            checksums = 0
            with contextlib.suppress(MetadataError):
                for row, checksum in self._checked(table):
                    if row_checksum(table, row) == checksum:
                        rows.append(row)
                        checksums += checksum
            found[table] = (rows, totals.get(table) == (len(rows), checksums))
        return found

    def _checked(self, table: str) -> Iterator[tuple[tuple[Value, ...], int]]:
        try:
            for *row, checksum in self._db.execute(f"SELECT {', '.join(TABLES[table])}, checksum FROM {table}"):
                if None in row or not isinstance(checksum, int):
                    raise self._damage(f"table {table}, {describe(table, row)}: a value is missing")
                yield tuple(row), checksum
        except UNREADABLE as error:
            raise self._damage(f"table {table} cannot be read: {error}") from error

    def _totals(self) -> Totals:
        try:
            rows = self._db.execute("SELECT name, row_count, checksums FROM totals").fetchall()
        except UNREADABLE as error:
            raise self._damage(f"table totals cannot be read: {error}") from error
        return {name: (count, checksums) for name, count, checksums in rows}

    def _damage(self, what: str) -> MetadataError:
        advice = "" if self.path is None else f"; {way_out(self.path.parent)}"
        return MetadataError(f"{self.path} is damaged: {_one_line(what)}{advice}")

    # ------------------------------------------------------------ changing

    @contextmanager
    def transaction(self, grows: bool = False) -> Iterator[None]:
        """Apply all changes in the block or none; they are on disk when it ends.

        Args: ``grows``: the change must not use the space that is reserved for changes that free space on a full disk.
        Raises: KafkaError KAFKA_STORAGE_ERROR when it cannot be stored; nothing has changed then.
        """
        with self.lock:
            try:
                if self._unknown_outcome:
                    raise sqlite3.OperationalError(self._unknown_outcome)
                self._keep_room(is_needed=grows)
                before = self._totals() if self.path is not None else {}
                try:
                    self._db.execute("BEGIN IMMEDIATE")
                    yield
                    self._db.execute("COMMIT")
                except BaseException:
                    self._roll_back()
                    self._look_for(before)
                    raise
            except sqlite3.ProgrammingError:  # closed: a bug, not a failure of the disk
                raise
            except sqlite3.DatabaseError as error:
                if isinstance(error, (sqlite3.IntegrityError, sqlite3.DataError)):
                    raise
                raise self._refused(error) from None
            except MetadataError as error:
                raise self._refused(error) from None
            if self._is_failing:
                self._is_failing = False
                logger.info("%s can be written again", self.path)

    def insert(self, table: str, rows: Iterable[Sequence[Value]]) -> None:
        """Add rows, in a transaction. Raises: sqlite3.IntegrityError for an existing row."""
        checked = [(*row, row_checksum(table, row)) for row in rows]
        marks = ", ".join("?" * (len(TABLES[table]) + 1))
        self._db.executemany(f"INSERT INTO {table} VALUES ({marks})", checked)
        self._count(table, len(checked), sum(cast(int, row[-1]) for row in checked))

    def delete(self, table: str, where: str, keys: Iterable[Sequence[Value]]) -> None:
        """Remove the rows that match ``where`` for each of ``keys``, in a transaction."""
        count = checksums = 0
        for key in keys:
            found = self._db.execute(f"SELECT checksum FROM {table} WHERE {where}", key).fetchall()
            if found:
                self._db.execute(f"DELETE FROM {table} WHERE {where}", key)
                count += len(found)
                checksums += sum(row[0] for row in found)
        if count:
            self._count(table, -count, -checksums)

    def one(self, query: str, parameters: Sequence[Value] = ()) -> tuple[Value, ...] | None:
        """Return the first row of a SELECT, in a transaction."""
        row: tuple[Value, ...] | None = self._db.execute(query, parameters).fetchone()
        return row

    def _count(self, table: str, rows: int, checksums: int) -> None:
        change = "UPDATE totals SET row_count=row_count+?, checksums=checksums+? WHERE name=?"
        self._db.execute(change, (rows, checksums, table))

    def _roll_back(self) -> None:
        with contextlib.suppress(sqlite3.Error):  # if the rollback fails now, the next read rolls back
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")

    def _look_for(self, before: Totals) -> None:
        """Check whether a commit whose sync failed is in the file: no change is then allowed before a restart."""
        if self.path is None:
            return
        try:
            is_undone = self._totals() == before
        except (MetadataError, sqlite3.Error):
            is_undone = False
        if not is_undone:
            self._unknown_outcome = "a change could be neither stored nor undone; start the broker again"

    def _refused(self, error: Exception) -> KafkaError:
        if not self._is_failing:
            self._is_failing = True
            logger.error("%s cannot be written, changes are refused until it can be: %s", self.path, error)
        return KafkaError(Errors.KAFKA_STORAGE_ERROR, f"Cannot store the change in the metadata file: {error}")

    # ------------------------------------------------------------ room for a full disk

    def _lengthen_journal(self, path: Path) -> None:
        journal = path.with_name(path.name + "-journal")
        fd = os.open(journal, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0), 0o644)
        try:
            size = os.fstat(fd).st_size
            if size < JOURNAL_BYTES:
                os.lseek(fd, size, os.SEEK_SET)
                left = memoryview(
                    bytes(JOURNAL_BYTES - size)
                )  # written, not only allocated, which works on every file system
                while left:
                    left = left[os.write(fd, left) :]
                sync_descriptor(fd)
        finally:
            os.close(fd)

    def _keep_room(self, is_needed: bool) -> None:
        if self.path is None:
            return
        try:
            self._refill()
        except sqlite3.OperationalError:
            if is_needed:
                raise

    def _refill(self) -> None:
        """Reserve free pages in the file: pages of a blob that was written to disk and removed again."""
        db = self._db
        if db.execute("SELECT 1 FROM reserve").fetchone() is not None:  # the process ended between the two steps
            with self._steps():
                db.execute("DELETE FROM reserve")
        free = int(db.execute("PRAGMA freelist_count").fetchone()[0])
        if free >= RESERVE_PAGES:
            return
        page = int(db.execute("PRAGMA page_size").fetchone()[0])
        with self._steps():
            db.execute("INSERT INTO reserve VALUES (zeroblob(?))", (REFILL_PAGES * page,))
        with self._steps():
            db.execute("DELETE FROM reserve")


def _one_line(what: object) -> str:
    return " ".join(str(what).split())


def describe(table: str, row: Sequence[object]) -> str:
    """Return a readable name of a row, whose content may be damaged."""
    keys = {
        "facts": 1, "topics": 1, "configs": 3, "quotas": 2, "scram_credentials": 2, "delegation_tokens": 1, "acls": 7,
    }.get(table, 0)  # fmt: skip
    words = {
        "topics": "topic", "quotas": "quota", "scram_credentials": "user", "facts": "fact",
        "delegation_tokens": "delegation token", "acls": "ACL",
    }  # fmt: skip
    if not keys:
        return "its row"
    shown = " ".join(repr(part)[:SHOWN_CHARACTERS] for part in row[:keys])
    return f"{words.get(table, 'row')} {shown}"


# A forked child has a copy of an open transaction, and would roll it back in the parent's file when it closes its own
# connection, so no process forks during a transaction.
_open_files: weakref.WeakSet[MetadataFile] = weakref.WeakSet()
_held_over_fork: list[threading.Lock] = []


def _before_fork() -> None:
    for file in list(_open_files):
        file.lock.acquire()
        _held_over_fork.append(file.lock)


def _after_fork() -> None:
    while _held_over_fork:
        _held_over_fork.pop().release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
