"""Write exactly once: the rows of a task are one transaction, which also contains a note of their batch.

The note is an offset that the transaction commits for a group with the name of the task's transactional id. A task
that runs again first fences the attempt before it; if the note names its batch, the rows are written already, and the
task only checks that it would have sent the same number and size of rows.

A run of the query may split a batch that an earlier run has written in part into other tasks, which Spark does not
report to a task. The tasks of such a batch therefore leave their transactions open: the driver, which has the number of
tasks, commits them if each note is that of one of them, and otherwise aborts all.
Source: KIP-98.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from kbroker.client.cluster import Cluster
from kbroker.client.connection import BrokerConnectionError
from kbroker.client.groups import Groups
from kbroker.client.transactional_producer import TransactionalProducer, is_fenced
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.topic_names import TopicPartition
from kbroker.spark.datasource.options import WriteOptions
from kbroker.spark.errors import PipelineError

if TYPE_CHECKING:
    from pyarrow import RecordBatch

#: Properties of Spark's tasks. A stream runs its jobs in a group that has the id of the run.
QUERY_ID, RUN_ID, BATCH_ID = "sql.streaming.queryId", "spark.jobGroup.id", "streaming.sql.batchId"
MAX_RUNS = 16  # whose first batch a process keeps
SOME_TOPIC = "__consumer_offsets"  # topic of the note if each row names its own topic; it must exist
SIZED = ("key", "value")
PLAN_CHANGED = (
    "Spark runs the batch again with other tasks: which of its rows are already written is unknown, and no more were "
    "written. Start the query with the settings it had then (partitions of the topics, minPartitions, "
    "maxRecordsPerPartition, spark.sql.shuffle.partitions, spark.sql.adaptive.enabled)"
)


@dataclass(frozen=True)
class TaskOfBatch:
    """A task of a batch.

    ``query_id``: unique, and unchanged by a restart of the query. ``run_id``: changed by a restart; "" if Spark does
    not provide it, and None for a batch query, which has one run. ``batch_id`` grows by one with each batch.
    ``number`` of the task in the batch.
    """

    query_id: str
    run_id: str | None
    batch_id: int
    number: int


@dataclass(frozen=True)
class Note:
    """Note of a transaction: its query, rows and bytes; the committed offset is the batch's number plus one.

    ``run_id``: that of the TaskOfBatch; "" in notes of kbroker 0.1, and of a batch query.
    """

    query_id: str
    record_count: int
    size_bytes: int
    run_id: str = ""


class OpenTransaction(NamedTuple):
    """A transaction that has all rows of a task."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


@dataclass
class Written(WriterCommitMessage):
    """The number of records of a task.

    ``repeated``: an earlier attempt wrote them. ``transaction``: the one that the driver has to commit.
    """

    record_count: int
    query_id: str = ""
    repeated: bool = False
    transaction: OpenTransaction | None = None


class TaskTransaction:
    """The transaction of one task of one batch.

    Args:
        cluster: not owned.
        options: with a transactional id.

    Threads: as its Cluster.
    """

    def __init__(self, cluster: Cluster, options: WriteOptions, task: TaskOfBatch) -> None:
        self.cluster = cluster
        self.options = options
        self.task = task
        self.name = task_name(options, task.number)
        self.record_count = self.size_bytes = 0

    def write(self, batches: Iterator[RecordBatch], send: Any) -> Written:
        """Send the rows unless an earlier attempt has done so.

        Args: ``send``: called with a producer and a batch for each batch of rows.
        Raises: KafkaError, BrokerConnectionError; PipelineError if the rows are not those written before.
        """
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            self._check_same(self._note())
            return Written(0, self.task.query_id)
        try:
            return self._write(_chained(first, batches), send)
        except KafkaError as error:
            if not is_fenced(error):
                raise
            text = f"another attempt, or another query with the same kafka.transactional.id, has taken over {self.name}"
            raise KafkaError(error.error, text) from None

    def _write(self, batches: Iterator[RecordBatch], send: Any) -> Written:
        producer = fencing_producer(self.cluster, self.options, self.name)
        before = self._note()
        if before is not None:
            for batch in batches:
                self._count(batch)
            self._check_same(before)
            return Written(self.record_count, self.task.query_id, repeated=True)
        is_begun = was_begun(self.cluster, self.options, self.task)
        producer.begin_transaction()
        try:
            for batch in batches:
                self._count(batch)
                send(producer, batch)
            producer.flush()
            note = Note(self.task.query_id, self.record_count, self.size_bytes, self.task.run_id or "")
            producer.send_offsets(self.name, {place(self.options): (self.task.batch_id + 1, json.dumps(asdict(note)))})
        except BaseException as error:
            _abort(producer, error)
            raise
        if is_begun:
            left_open = OpenTransaction(self.name, *producer.identity)
            return Written(self.record_count, self.task.query_id, transaction=left_open)
        producer.commit_transaction()
        return Written(self.record_count, self.task.query_id)

    def _note(self) -> Note | None:
        """Return the note of an earlier attempt at this batch, or None. Raises: PipelineError after a later batch."""
        found = read_note(self.cluster, self.options, self.name)
        if found is None or found[1].query_id != self.task.query_id:
            return None
        written, note = found
        batch_id = self.task.batch_id
        if written > batch_id:
            raise PipelineError(
                f"batch {batch_id} is to be written by {self.name}, which has written batch {written} already: "
                "the checkpoint is older than the topic. Continue from the newest checkpoint, or give the query a new "
                "one and a new kafka.transactional.id"
            )
        return note if written == batch_id else None

    def _check_same(self, before: Note | None) -> None:
        if before is not None and (before.record_count, before.size_bytes) != (self.record_count, self.size_bytes):
            raise PipelineError(
                f"batch {self.task.batch_id}: {self.name} wrote {before.record_count} rows of {before.size_bytes} "
                f"bytes, and would now write {self.record_count} of {self.size_bytes}. {PLAN_CHANGED}"
            )

    def _count(self, batch: RecordBatch) -> None:
        self.record_count += batch.num_rows
        self.size_bytes += size_of(batch)


def in_task(batch_query_id: str | None) -> TaskOfBatch:
    """Return the task that this process runs.

    Args: ``batch_query_id``: identity of a batch query, which is one batch; None in a streaming query.
    Raises: PipelineError if Spark does not provide the query and its batch.
    """
    context = TaskContext.get()
    if context is None:
        raise PipelineError("kafka.transactional.id needs a task of Spark")
    if batch_query_id is not None:
        return TaskOfBatch(batch_query_id, None, 0, context.partitionId())
    query_id, batch_id = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
    if not query_id or not batch_id:
        raise PipelineError(
            "kafka.transactional.id needs the number of the batch, which this Spark does not give to tasks; remove it"
        )
    return TaskOfBatch(query_id, context.getLocalProperty(RUN_ID) or "", int(batch_id), context.partitionId())


#: By run: its first batch in this process, and whether an earlier run wrote a part of that; main thread of a worker.
_first_batches: dict[str, tuple[int, bool]] = {}


def was_begun(cluster: Cluster, options: WriteOptions, task: TaskOfBatch) -> bool:
    """Return whether an earlier run of the query wrote a part of the batch, or may still do so.

    Only the first batch of a run can be such: later ones cost no request.
    """
    if task.run_id is None:
        return False
    known = _first_batches.get(task.run_id)
    if known is None:
        is_begun = any(_is_of_earlier_run(cluster, options, task, name) for _, name in _tasks(cluster, options))
        known = task.batch_id, is_begun
        while len(_first_batches) >= MAX_RUNS:
            _first_batches.pop(next(iter(_first_batches)))
        if task.run_id:
            _first_batches[task.run_id] = known
    return known == (task.batch_id, True)


def _is_of_earlier_run(cluster: Cluster, options: WriteOptions, task: TaskOfBatch, name: str) -> bool:
    try:
        found = read_note(cluster, options, name)
    except KafkaError as error:
        if error.error is not Errors.UNSTABLE_OFFSET_COMMIT:
            raise
        return True
    if found is None:
        return False
    written, note = found
    is_own = bool(note.run_id) and note.run_id == task.run_id
    return (written, note.query_id) == (task.batch_id, task.query_id) and not is_own


def commit_batch(cluster: Cluster, options: WriteOptions, messages: Sequence[Any], batch_id: int) -> None:
    """Complete a batch that an earlier run wrote in part: commit the transactions that its tasks have left open.

    Args: ``messages``: one from each task.
    Raises: PipelineError if the earlier run had tasks that this one does not have: all transactions are aborted then.
    """
    known = [one for one in messages if isinstance(one, Written)]
    left = [one.transaction for one in known if one.transaction is not None]
    if not left and not any(one.repeated for one in known):
        return
    try:
        _check_tasks(cluster, options, known[0].query_id, len(messages), batch_id)
        while left:
            _taken_over(cluster, left[0]).commit_transaction()
            left.pop(0)
    except BaseException:
        abort_batch(cluster, [Written(0, transaction=one) for one in left])
        raise


def abort_batch(cluster: Cluster, messages: Sequence[Any]) -> None:
    """Abort the transactions that tasks have left open: otherwise readers would wait until the tasks run again."""
    for one in messages:
        if isinstance(one, Written) and one.transaction is not None:
            with suppress(KafkaError, BrokerConnectionError):
                _taken_over(cluster, one.transaction).abort_transaction()


def _check_tasks(cluster: Cluster, options: WriteOptions, query_id: str, count: int, batch_id: int) -> None:
    """Check that no task of an earlier run is missing. Args: ``count``: the number of tasks."""
    for number, name in _tasks(cluster, options):
        if number < count:
            continue
        before = read_note(cluster, options, name, require_stable=False)
        if before is not None and before[1].query_id == query_id:
            fencing_producer(cluster, options, name)  # a task of the earlier run that still runs writes nothing more
        found = read_note(cluster, options, name)
        if found is not None and found[0] == batch_id and found[1].query_id == query_id:
            raise PipelineError(
                f"batch {batch_id}: {name} has written {found[1].record_count} rows, and the batch has only {count} "
                f"tasks now. {PLAN_CHANGED}"
            )


def _tasks(cluster: Cluster, options: WriteOptions) -> Iterator[tuple[int, str]]:
    """Yield the number and the transactional id of each task of any batch that has a note."""
    prefix = task_name(options, 0)[:-1]
    for listed in Groups(cluster).list_groups():
        number = listed.group_id.removeprefix(prefix)
        if number != listed.group_id and number.isdecimal():
            yield int(number), listed.group_id


def fencing_producer(cluster: Cluster, options: WriteOptions, name: str) -> TransactionalProducer:
    """Return the producer of a transactional id, which fences earlier ones and aborts their transaction."""
    producer = TransactionalProducer(
        cluster,
        name,
        transaction_timeout_ms=options.transaction_timeout_ms,
        codec=options.codec,
        batch_size_bytes=options.batch_size_bytes,
        timeout_ms=options.timeout_ms,
    )
    producer.init_transactions()
    return producer


def _taken_over(cluster: Cluster, transaction: OpenTransaction) -> TransactionalProducer:
    name, *identity = transaction
    producer = TransactionalProducer(cluster, name)
    producer.take_over(*identity)
    return producer


def task_name(options: WriteOptions, task: int) -> str:
    """Return the transactional id of a task, which is also the group of its note."""
    return f"{options.transactional_id}-{task}"


def place(options: WriteOptions) -> TopicPartition:
    """Return the partition whose committed offset is the note."""
    return options.topic or SOME_TOPIC, 0


def read_note(
    cluster: Cluster, options: WriteOptions, group_id: str, *, require_stable: bool = True
) -> tuple[int, Note] | None:
    """Return the last batch that a task has written, and its note; None if the group has no offset with a note.

    Args: ``require_stable``: wait for the end of an open transaction.
    """
    wanted = place(options)
    committed = Groups(cluster).committed(group_id, [wanted], require_stable=require_stable).get(wanted)
    if committed is None:
        return None
    try:
        given = json.loads(committed.metadata)
        note = Note(
            str(given["query_id"]), int(given["record_count"]), int(given["size_bytes"]), str(given.get("run_id", ""))
        )
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
