"""Hands the micro-batches of a stream to a function of this process, over Spark Connect too.

There `foreachBatch` runs its function on the server, in another process that knows nothing of this one. So what runs
there only offers the batch, as a view of the session that both share, and waits until it is taken: the batch is
committed when the function of this process has returned, and not if that has raised or this process has ended.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from kbroker._core.clock import SystemClock
from kbroker.spark.errors import PipelineError
from kbroker.spark.session_kind import is_connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

POLL_SECONDS = 0.1
BEAT_SECONDS = 5.0
PATIENCE_SECONDS = 60.0  # of the server for a process that gives no sign of life

Write = Callable[["DataFrame", int], None]


class MicroBatches:
    """The batches of the queries of one stream, one after the other.

    Args: ``write``: called with each batch and its number, on a thread of Spark's or of this object's.

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
        key = f"kbroker_{uuid.uuid4().hex}"
        self._client = _Client(self._spark, key, self._write)
        return writer.foreachBatch(partial(_offer, key)).start()

    def close(self) -> None:
        """Take no further batch; return when the one at hand is done."""
        client, self._client = self._client, None
        if client is not None:
            client.close()


class _Client:
    """Takes what the server offers, on a thread; gives signs of life on another."""

    def __init__(self, spark: SparkSession, key: str, write: Write) -> None:
        self._spark, self._key, self._write = spark, key, write
        self._closed = threading.Event()
        self._beat(0)
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._live, self._take)]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._closed.set()
        for thread in self._threads:
            thread.join()

    def _beat(self, number: int) -> None:
        self._spark.conf.set(f"{self._key}.beat", str(number))

    def _live(self) -> None:
        number = 0
        while not self._closed.wait(BEAT_SECONDS):
            number += 1
            self._beat(number)

    def _take(self) -> None:
        taken = ""
        try:
            while not self._closed.wait(POLL_SECONDS):
                offered = self._spark.conf.get(f"{self._key}.offered", "") or ""
                if offered == taken:
                    continue
                taken = offered
                self._write(self._spark.table(f"{self._key}_{offered}"), int(offered))
                self._spark.conf.set(f"{self._key}.done", offered)
        except Exception as error:
            self._closed.set()  # no sign of life from here on: a server that does not get the reason gives up too
            with suppress(Exception):
                self._spark.conf.set(f"{self._key}.failed", " ".join(str(error).split()) or type(error).__name__)


def _offer(key: str, batch: DataFrame, number: int) -> None:
    """On the server: wait until the client has taken the batch. Raises: PipelineError with what the client says."""
    session = batch.sparkSession
    view = f"{key}_{number}"
    batch.createOrReplaceTempView(view)
    session.conf.set(f"{key}.offered", str(number))
    clock = SystemClock()
    beat, since_ms = "", clock.now_ms()
    while session.conf.get(f"{key}.done", "") != str(number):
        failed = session.conf.get(f"{key}.failed", "")
        if failed:
            raise PipelineError(failed)
        now = session.conf.get(f"{key}.beat", "") or ""
        if now != beat:
            beat, since_ms = now, clock.now_ms()
        elif clock.now_ms() - since_ms > PATIENCE_SECONDS * 1000:
            raise PipelineError(f"the process that reads this stream has been silent for {PATIENCE_SECONDS:g} s")
        time.sleep(POLL_SECONDS)
    session.catalog.dropTempView(view)
