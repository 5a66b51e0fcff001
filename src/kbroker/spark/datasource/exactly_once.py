"""Write exactly once: the rows of a task are one transaction, which also contains a note of their batch.

The note is an offset that the transaction commits for a group with the name of the task's transactional id. A task
that runs again first fences the attempt before it; if the note names its batch, the rows are written already, and the
task only checks that it would have sent the same number and size of rows.
Source: KIP-98.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from kbroker.client.cluster import Cluster
from kbroker.client.connection import BrokerConnectionError
from kbroker.client.groups import Groups
from kbroker.client.transactional_producer import TransactionalProducer, is_fenced
from kbroker.common.errors import KafkaError
from kbroker.common.topic_names import TopicPartition
from kbroker.spark.datasource.options import WriteOptions
from kbroker.spark.errors import PipelineError

if TYPE_CHECKING:
    from pyarrow import RecordBatch

QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"  # properties of Spark's tasks
SOME_TOPIC = "__consumer_offsets"  # topic of the note if each row names its own topic; it must exist
SIZED = ("key", "value")
PLAN_CHANGED = (
    "Spark runs the batch again with other tasks: which of its rows are already written is unknown. Start the query "
    "with the settings it had then (partitions of the topics, minPartitions, maxRecordsPerPartition, "
    "spark.sql.shuffle.partitions)"
)


@dataclass(frozen=True)
class Note:
    """Note of a transaction: its query, rows and bytes; the committed offset is the batch's number plus one."""

    query_id: str
    record_count: int
    size_bytes: int


@dataclass
class Written(WriterCommitMessage):
    """The number of records of a task; ``repeated``: an earlier attempt wrote them."""

    record_count: int
    query_id: str = ""
    repeated: bool = False


class TaskTransaction:
    """The transaction of one task of one batch.

    Args:
        cluster: not owned.
        options: with a transactional id.
        query_id: unique, and unchanged by a restart of the query.
        batch_id: grows by one with each batch.
        task: its number in the batch.

    Threads: as its Cluster.
    """

    def __init__(self, cluster: Cluster, options: WriteOptions, query_id: str, batch_id: int, task: int) -> None:
        self.cluster = cluster
        self.options = options
        self.query_id = query_id
        self.batch_id = batch_id
        self.name = task_name(options, task)
        self.record_count = self.size_bytes = 0

    def write(self, batches: Iterator[RecordBatch], send: Any) -> Written:
        """Send the rows unless an earlier attempt has done so.

        Args: ``send``: called with a producer and a batch for each batch of rows.
        Raises: KafkaError, BrokerConnectionError; PipelineError if the rows are not those written before.
        """
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            self._check_same(self._note())
            return Written(0, self.query_id)
        try:
            return self._write(_chained(first, batches), send)
        except KafkaError as error:
            if not is_fenced(error):
                raise
            text = f"another attempt, or another query with the same kafka.transactional.id, has taken over {self.name}"
            raise KafkaError(error.error, text) from None

    def _write(self, batches: Iterator[RecordBatch], send: Any) -> Written:
        producer = self._producer()
        producer.init_transactions()
        before = self._note()
        if before is not None:
            for batch in batches:
                self._count(batch)
            self._check_same(before)
            return Written(self.record_count, self.query_id, repeated=True)
        producer.begin_transaction()
        try:
            for batch in batches:
                self._count(batch)
                send(producer, batch)
            producer.flush()
            note = Note(self.query_id, self.record_count, self.size_bytes)
            producer.send_offsets(self.name, {place(self.options): (self.batch_id + 1, json.dumps(asdict(note)))})
        except BaseException as error:
            _abort(producer, error)
            raise
        producer.commit_transaction()
        return Written(self.record_count, self.query_id)

    def _producer(self) -> TransactionalProducer:
        return TransactionalProducer(
            self.cluster,
            self.name,
            transaction_timeout_ms=self.options.transaction_timeout_ms,
            codec=self.options.codec,
            batch_size_bytes=self.options.batch_size_bytes,
            timeout_ms=self.options.timeout_ms,
        )

    def _note(self) -> Note | None:
        """Return the note of an earlier attempt at this batch, or None. Raises: PipelineError after a later batch."""
        found = read_note(self.cluster, self.options, self.name)
        if found is None or found[1].query_id != self.query_id:
            return None
        written, note = found
        if written > self.batch_id:
            raise PipelineError(
                f"batch {self.batch_id} is to be written by {self.name}, which has written batch {written} already: "
                "the checkpoint is older than the topic. Continue from the newest checkpoint, or give the query a new "
                "one and a new kafka.transactional.id"
            )
        return note if written == self.batch_id else None

    def _check_same(self, before: Note | None) -> None:
        if before is not None and (before.record_count, before.size_bytes) != (self.record_count, self.size_bytes):
            raise PipelineError(
                f"batch {self.batch_id}: {self.name} wrote {before.record_count} rows of {before.size_bytes} bytes, "
                f"and would now write {self.record_count} of {self.size_bytes}. {PLAN_CHANGED}"
            )

    def _count(self, batch: RecordBatch) -> None:
        self.record_count += batch.num_rows
        self.size_bytes += size_of(batch)


def in_task(run_id: str | None) -> tuple[str, int, int]:
    """Return the query, batch and task that this process runs.

    Args: ``run_id``: identity of a batch query, which is one batch; None in a streaming query.
    Raises: PipelineError if Spark does not provide them.
    """
    context = TaskContext.get()
    if context is None:
        raise PipelineError("kafka.transactional.id needs a task of Spark")
    if run_id is not None:
        return run_id, 0, context.partitionId()
    query_id, batch_id = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
    if not query_id or not batch_id:
        raise PipelineError(
            "kafka.transactional.id needs the number of the batch, which this Spark does not give to tasks; remove it"
        )
    return query_id, int(batch_id), context.partitionId()


def check_repeated(cluster: Cluster, options: WriteOptions, messages: Sequence[Any], batch_id: int) -> None:
    """Check, after a batch that an earlier attempt wrote in part, that no task of that attempt is missing.

    Raises: PipelineError if an earlier attempt at the batch had tasks that this one does not have.
    """
    known = [one for one in messages if isinstance(one, Written)]
    if not any(one.repeated for one in known):
        return
    query_id = known[0].query_id
    groups = Groups(cluster)
    prefix = task_name(options, 0)[:-1]
    for listed in groups.list_groups():
        number = listed.group_id.removeprefix(prefix)
        if number == listed.group_id or not number.isdecimal() or int(number) < len(messages):
            continue
        found = read_note(cluster, options, listed.group_id)
        if found is not None and found[0] == batch_id and found[1].query_id == query_id:
            raise PipelineError(
                f"batch {batch_id}: {listed.group_id} has written {found[1].record_count} rows, and the batch has only "
                f"{len(messages)} tasks now. {PLAN_CHANGED}"
            )


def task_name(options: WriteOptions, task: int) -> str:
    """Return the transactional id of a task, which is also the group of its note."""
    return f"{options.transactional_id}-{task}"


def place(options: WriteOptions) -> TopicPartition:
    """Return the partition whose committed offset is the note."""
    return options.topic or SOME_TOPIC, 0


def read_note(cluster: Cluster, options: WriteOptions, group_id: str) -> tuple[int, Note] | None:
    """Return the last batch that a task has written, and its note; None if the group has no offset with a note."""
    committed = Groups(cluster).committed(group_id, [place(options)], require_stable=True).get(place(options))
    if committed is None:
        return None
    try:
        given = json.loads(committed.metadata)
        note = Note(str(given["query_id"]), int(given["record_count"]), int(given["size_bytes"]))
    except (ValueError, TypeError, KeyError):
        return None
    return committed.offset - 1, note


def size_of(batch: RecordBatch) -> int:
    """Return the total size of keys and values in bytes."""
    import pyarrow.compute as pc

    names = batch.schema.names
    return sum(
        pc.sum(pc.binary_length(batch.column(names.index(name)))).as_py() or 0 for name in SIZED if name in names
    )


def _chained(first: RecordBatch, others: Iterable[RecordBatch]) -> Iterator[RecordBatch]:
    yield first
    yield from (batch for batch in others if batch.num_rows)


def _abort(producer: TransactionalProducer, error: BaseException) -> None:
    """Abort the transaction now: otherwise readers would wait until the next attempt ends it."""
    if not (isinstance(error, KafkaError) and is_fenced(error)):
        with suppress(KafkaError, BrokerConnectionError):
            producer.abort_transaction()
