"""Pass the micro-batches of a stream to a function of this process, over Spark Connect too.

Over Spark Connect, `foreachBatch` runs its function on the server, in a separate process. That function only offers the
batch as a global temporary view and waits until this process has taken it: the batch is committed when the function of
this process has returned, and not if it has raised or this process has ended.

The two processes exchange notes as global temporary views as well, because those belong to the whole server. The
server's function may run in a clone of the client's session (since Spark 4.3), where settings and temporary views of
the client are not visible.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from kbroker._core.clock import SystemClock
from kbroker.common.threads import new_thread
from kbroker.spark.errors import PipelineError
from kbroker.spark.session_kind import is_connect

POLL_SECONDS = 0.1
BEAT_SECONDS = 5.0
PATIENCE_SECONDS = 60.0  # time after which the server stops waiting for a process that sends no heartbeat
_VIEWS = "global_temp"  # the database of global temporary views, unless a server renames it

Write = Callable[["DataFrame", int], None]


class MicroBatches:
    """The micro-batches of the queries of one stream, one after the other.

    Args: ``write``: called with each batch and its number, on a thread of Spark or of this object.

    Threads: `start` and `close` on the caller's.
    """

    def __init__(self, spark: SparkSession, write: Write) -> None:
        self._spark = spark
        self._write = write
        self._client: _Client | None = None

    def start(self, writer: Any) -> Any:
        """Start a query. Args: `writer`: a `DataStreamWriter` with all its options. Returns: the `StreamingQuery`."""
        if not is_connect(self._spark):
            return writer.foreachBatch(self._write).start()
        self.close()
        database = self._spark.conf.get("spark.sql.globalTempDatabase", _VIEWS) or _VIEWS
        notes = _Notes(f"kbroker_{uuid.uuid4().hex}", database)
        self._client = _Client(self._spark, notes, self._write)
        return writer.foreachBatch(partial(_offer, notes)).start()

    def close(self) -> None:
        """Take no further batch; return when the current one is done."""
        client, self._client = self._client, None
        if client is not None:
            client.close()


@dataclass(frozen=True)
class _Notes:
    """Names of the views that both processes read. `database`: that of global temporary views."""

    key: str
    database: str

    def put(self, session: SparkSession, name: str, value: str) -> None:
        """Write or replace a note."""
        session.createDataFrame([(value,)], "note string").createOrReplaceGlobalTempView(f"{self.key}_{name}")

    def get(self, session: SparkSession, name: str) -> str | None:
        """Return a note, or None after `drop`. Reading needs no Spark job: the view is a literal row."""
        try:
            return str(self.view(session, name).collect()[0][0])
        except Exception as error:
            if type(error).__name__ != "AnalysisException":
                raise
            return None

    def view(self, session: SparkSession, name: str) -> DataFrame:
        return session.table(f"{self.database}.{self.key}_{name}")

    def drop(self, session: SparkSession, *names: str) -> None:
        """Drop views; a failed server may already have dropped some of them."""
        for name in names:
            with suppress(Exception):
                session.catalog.dropGlobalTempView(f"{self.key}_{name}")


#: Notes: a count that grows while the client runs; the offered batch; the last batch taken, or why one failed.
_BEAT, _OFFERED, _TAKEN = "beat", "offered", "taken"
_NONE = "-1"


class _Client:
    """Client that takes the offered batches on one thread, and sends heartbeats on another."""

    def __init__(self, spark: SparkSession, notes: _Notes, write: Write) -> None:
        self._spark, self._notes, self._write = spark, notes, write
        self._closed = threading.Event()
        self._beat(0)
        notes.put(spark, _OFFERED, _NONE)
        self._taken(number=_NONE)
        self._threads = [new_thread("batch-heartbeat", self._live), new_thread("batch-taker", self._take)]
        try:
            for thread in self._threads:
                thread.start()
        except RuntimeError:  # the system has no more threads
            self.close()
            raise

    def close(self) -> None:
        self._closed.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        self._notes.drop(self._spark, _BEAT, _OFFERED, _TAKEN)

    def _beat(self, number: int) -> None:
        self._notes.put(self._spark, _BEAT, str(number))

    def _taken(self, **note: str) -> None:
        self._notes.put(self._spark, _TAKEN, json.dumps(note))

    def _live(self) -> None:
        number = 0
        while not self._closed.wait(BEAT_SECONDS):
            number += 1
            with suppress(Exception):  # the call to the server failed; the server waits for the next heartbeat
                self._beat(number)

    def _take(self) -> None:
        taken = _NONE
        try:
            while not self._closed.wait(POLL_SECONDS):
                offered = self._notes.get(self._spark, _OFFERED)
                if offered is None or offered == taken:
                    continue
                taken = offered
                self._write(self._notes.view(self._spark, offered), int(offered))
                self._taken(number=offered)
        except Exception as error:
            self._closed.set()  # ends the heartbeat: a server that does not get the reason gives up too
            with suppress(Exception):
                self._taken(number=_NONE, failed=" ".join(str(error).split()) or type(error).__name__)


def _offer(notes: _Notes, batch: DataFrame, number: int) -> None:
    """Wait, on the server, until the client has taken the batch.

    Raises: PipelineError with the client's reason, or when the client has sent no heartbeat for PATIENCE_SECONDS.
    """
    session = batch.sparkSession
    view = str(number)
    batch.createOrReplaceGlobalTempView(f"{notes.key}_{view}")
    try:
        notes.put(session, _OFFERED, view)
        _await(notes, session, view)
    except PipelineError:
        notes.drop(session, _OFFERED)  # the client may have dropped its notes already
        raise
    finally:
        notes.drop(session, view)


def _await(notes: _Notes, session: SparkSession, offered: str) -> None:
    clock = SystemClock()
    beat: str | None = None
    since_ms = clock.now_ms()
    while True:
        note = notes.get(session, _TAKEN)
        if note is None:
            raise PipelineError("the process that reads this stream has ended")
        taken = json.loads(note)
        if "failed" in taken:
            raise PipelineError(taken["failed"])
        if taken["number"] == offered:
            return
        now = notes.get(session, _BEAT)
        if now != beat:
            beat, since_ms = now, clock.now_ms()
        elif clock.now_ms() - since_ms > PATIENCE_SECONDS * 1000:
            raise PipelineError(f"the process that reads this stream has been silent for {PATIENCE_SECONDS:g} s")
        time.sleep(POLL_SECONDS)
