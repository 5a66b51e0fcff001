"""Write rows as records, in order within a partition: at least once, or exactly once with a transactional id.

A task sends its rows in their order and ends when every batch is acknowledged. A task that Spark runs again sends its
rows again: without a transactional id the records of the first attempt are then duplicated. Within one attempt an
idempotent producer prevents duplicates of a retried batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, DataType, IntegerType, StringType, StructType

from kbroker.client.cluster import Cluster
from kbroker.client.producer import Producer
from kbroker.common.errors import Errors, KafkaError
from kbroker.spark.datasource.cluster_cache import cluster_for
from kbroker.spark.datasource.column_types import TYPES
from kbroker.spark.datasource.error_messages import plainly
from kbroker.spark.datasource.exactly_once import TaskTransaction, Written, abort_batch, commit_batch, in_task
from kbroker.spark.datasource.options import WriteOptions
from kbroker.spark.errors import PipelineError

if TYPE_CHECKING:
    from pyarrow import RecordBatch

BYTES: tuple[DataType, ...] = (BinaryType(), StringType())
ALLOWED: dict[str, tuple[DataType, ...]] = {
    "key": BYTES,
    "value": BYTES,
    "topic": (StringType(),),
    "partition": (IntegerType(),),
    "headers": (TYPES["headers"],),
}
NO_PRODUCER_ID = (Errors.CLUSTER_AUTHORIZATION_FAILED, Errors.UNSUPPORTED_VERSION)


class KbrokerWriter(DataSourceArrowWriter):
    """Writer of a batch query. Threads: one at a time; pickled to the workers."""

    def __init__(self, options: WriteOptions) -> None:
        self.options = options
        self.run_id = str(uuid4())

    @plainly
    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:
        """Send the rows of one task."""
        return write_task(iterator, self.options, self.run_id)


class KbrokerStreamWriter(DataSourceStreamArrowWriter):
    """Writer of a streaming query; without a transactional id a batch that Spark runs again is sent again."""

    def __init__(self, options: WriteOptions) -> None:
        self.options = options

    @plainly
    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:
        """Send the rows of one task."""
        return write_task(iterator, self.options, None)

    @plainly
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Complete a batch that an earlier run of the query wrote in part."""
        if self.options.transactional_id is not None:
            commit_batch(cluster_for(self.options.client), self.options, messages, batchId)

    @plainly
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Abort the transactions of a batch that failed."""
        if self.options.transactional_id is not None:
            abort_batch(cluster_for(self.options.client), messages)


def check_schema(schema: StructType, options: WriteOptions) -> None:
    """Check the columns of a sink; unknown ones are ignored, as by the official sink.

    Raises: PipelineError naming the column and its type.
    """
    given = {one.name: one for one in schema.fields if one.name in ALLOWED}
    if "value" not in given:
        raise PipelineError("the rows have no column value to write: name one, as in selectExpr('... AS value')")
    if options.topic is None and "topic" not in given:
        raise PipelineError("no topic to write to: set the option topic, or give a column topic")
    for name, one in given.items():
        if all(one.dataType.simpleString() != kind.simpleString() for kind in ALLOWED[name]):
            wanted = " or ".join(kind.simpleString() for kind in ALLOWED[name])
            raise PipelineError(f"column {name} is {one.dataType.simpleString()}; cast it to {wanted}")


def write_task(batches: Iterator[Any], options: WriteOptions, run_id: str | None) -> Written:
    """Send the Arrow batches of a task and wait until all are acknowledged.

    Args: ``run_id``: identity of a batch query; None in a streaming query.
    Raises: KafkaError, BrokerConnectionError; PipelineError for a row without a topic.
    """
    if options.transactional_id is not None:
        transaction = TaskTransaction(cluster_for(options.client), options, in_task(run_id))
        return transaction.write(batches, partial(send_batch, options))
    producer: Producer | None = None
    count = 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        if producer is None:
            producer = open_producer(cluster_for(options.client), options)
        send_batch(options, producer, batch)
        count += batch.num_rows
    if producer is not None:
        producer.flush()
    return Written(count)


def send_batch(options: WriteOptions, producer: Producer, batch: RecordBatch) -> None:
    """Pass the rows of an Arrow batch to a producer.

    Raises: KafkaError, BrokerConnectionError; PipelineError for a row without a topic.
    """
    from kbroker.spark.datasource.arrow_rows import by_topic, rows_of

    for topic, part in [(options.topic, batch)] if options.topic is not None else by_topic(batch):
        if topic is None:
            raise PipelineError("a row has no topic: set the option topic, or leave no null in the column topic")
        try:
            producer.send_rows(topic, rows_of(part))
        except ValueError as error:
            raise PipelineError(str(error)) from None


def open_producer(cluster: Cluster, options: WriteOptions) -> Producer:
    """Open a producer: idempotent, unless idempotence is off, or was not requested and the cluster refuses it."""

    def make(idempotent: bool) -> Producer:
        return Producer(
            cluster,
            acks=options.acks,
            codec=options.codec,
            batch_size_bytes=options.batch_size_bytes,
            idempotent=idempotent,
            timeout_ms=options.timeout_ms,
        )

    if options.idempotent is False:
        return make(False)
    producer = make(True)
    try:
        producer.init_producer_id()
    except KafkaError as error:
        if options.idempotent or error.error not in NO_PRODUCER_ID:
            raise
        return make(False)
    return producer
