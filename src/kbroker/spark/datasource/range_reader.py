"""Read a range of offsets into Arrow batches, the work of a task of Spark."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from kbroker.client.admin import EARLIEST, LATEST, Admin
from kbroker.client.cluster import Cluster
from kbroker.client.consumer import AbortedTransactions, FetchedPartition
from kbroker.client.partition_reader import FetchSettings, PartitionReader
from kbroker.common.errors import Errors, KafkaError, ProtocolError
from kbroker.protocol.records import iter_batches
from kbroker.spark.datasource.arrow_batches import BatchBuilder
from kbroker.spark.datasource.error_messages import offsets_held
from kbroker.spark.datasource.options import KEEP_ON
from kbroker.spark.datasource.planning import OffsetRange
from kbroker.spark.errors import PipelineError

THROTTLE_REPORT_S = 10.0  # minimum time between two log lines about the throttles of a range
LIMIT_ROWS, LIMIT_BYTES = 40_000, 1 << 20  # of an Arrow batch, which ends with the record batch that reaches a limit
NO_SUCH_TOPIC = (Errors.UNKNOWN_TOPIC_OR_PARTITION, Errors.UNKNOWN_TOPIC_ID, Errors.INCONSISTENT_TOPIC_ID)

_log = logging.getLogger(__name__)


@dataclass
class RangeReader:
    """An iterable of the records of ``wanted`` as Arrow batches.

    Args:
        cluster: not owned.
        wanted: partition and offsets.
        columns: as BatchBuilder.
        fetch: sizes, waits, isolation.
        fail_on_data_loss: offsets that no longer exist are an error; otherwise they are skipped with a warning.

    ``throttled_s`` is the time for which quotas of the broker throttled the reads, logged once in THROTTLE_REPORT_S.

    Raises: PipelineError for lost data; KafkaError CORRUPT_MESSAGE or UNSUPPORTED_FOR_MESSAGE_FORMAT with partition and
        offset; the errors of `PartitionReader`.

    Threads: as its Cluster.
    """

    cluster: Cluster
    wanted: OffsetRange
    columns: Sequence[str]
    fetch: FetchSettings
    fail_on_data_loss: bool = True
    throttled_s: float = field(default=0.0, init=False)
    _throttle_reported_at_s: float | None = field(default=None, init=False)

    def __iter__(self) -> Iterator[Any]:
        builder = BatchBuilder(self.columns, self.wanted.topic, self.wanted.partition)
        for data in self._segments():
            position = 0
            while True:
                try:
                    position = builder.gathered.append(
                        data,
                        position,
                        self.wanted.from_offset,
                        self.wanted.until_offset,
                        limit_rows=LIMIT_ROWS,
                        limit_bytes=LIMIT_BYTES,
                    )
                except ProtocolError as error:
                    raise ProtocolError(f"{self._name}: {error.message}", error.error) from None
                if not builder.gathered.is_full:
                    break
                yield builder.take()
        if builder.gathered.row_count:
            yield builder.take()

    @property
    def _name(self) -> str:
        return f"partition {self.wanted.topic}-{self.wanted.partition}"

    def _segments(self) -> Iterator[memoryview]:
        """Yield each response whole, or without the record batches of the aborted transactions that it names."""
        for part in self._parts():
            if not part.aborted:
                yield part.data
                continue
            aborted = AbortedTransactions(part.aborted)  # all those of this part: a marker before it may be deleted
            for batch in iter_batches(part.data, allow_truncated=True):
                if not aborted.skips(batch):
                    yield batch.raw

    def _parts(self) -> Iterator[FetchedPartition]:
        wanted = self.wanted
        reader = PartitionReader(
            self.cluster,
            wanted.topic,
            wanted.partition,
            wanted.from_offset,
            wanted.until_offset,
            wanted.topic_id,
            self.fetch,
            self._throttled,
        )
        while reader.position < reader.until_offset:
            try:
                yield from reader
            except KafkaError as error:
                if error.error is Errors.OFFSET_OUT_OF_RANGE:
                    self._pass_over(reader)
                elif error.error in NO_SUCH_TOPIC:
                    self._lost(
                        f"offsets {reader.position} to {wanted.until_offset - 1} of {self._name} do not exist: {error}"
                    )
                    return
                else:
                    raise

    def _throttled(self, seconds: float) -> None:
        self.throttled_s += seconds
        now_s = self.cluster.clock()
        if self._throttle_reported_at_s is None or now_s - self._throttle_reported_at_s >= THROTTLE_REPORT_S:
            self._throttle_reported_at_s = now_s
            _log.warning(
                "kbroker: %s: a quota of the broker throttles client %s, for %.1f s so far",
                self._name,
                self.cluster.client_id,
                self.throttled_s,
            )

    def _pass_over(self, reader: PartitionReader) -> None:
        """Skip the offsets that the log does not have. Raises: KafkaError; PipelineError with ``fail_on_data_loss``."""
        tp = (self.wanted.topic, self.wanted.partition)
        admin = Admin(self.cluster)
        begin, end = (admin.offsets_at([tp], which)[tp] for which in (EARLIEST, LATEST))
        asked = f"offsets {reader.position} to {reader.until_offset - 1} of {self._name}"
        if begin <= reader.position <= end:
            raise KafkaError(
                Errors.OFFSET_OUT_OF_RANGE, f"{asked}: the broker refuses them, although it has {begin} to {end}"
            )
        self._lost(f"{asked} do not all exist: the log has {offsets_held(begin, end)} (retention, or truncated)")
        reader.position = min(max(begin, reader.position), reader.until_offset)
        reader.until_offset = max(reader.position, min(end, reader.until_offset))

    def _lost(self, what: str) -> None:
        if self.fail_on_data_loss:
            raise PipelineError(f"{what}; {KEEP_ON}")
        _log.warning("%s", what)
