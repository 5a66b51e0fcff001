"""Spark's own Kafka connector: options that shorten its time-outs, and sentences for its failures."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from kbroker.spark.errors import PipelineError
from kbroker.spark.setup.jars import COMMAND

PATIENCE_MS = 10_000
_ATTEMPTS = 2


def source_options(bootstrap_servers: str, *, patience_ms: int = PATIENCE_MS) -> dict[str, str]:
    """Return options for reads with ``format("kafka")``: a stopped broker is an error after about `patience_ms`.

    The connector's own defaults wait three minutes on the driver and two in a task. A query does not fail
    if a broker is unavailable for a shorter time.
    """
    attempt_ms = max(1, patience_ms // _ATTEMPTS)
    return {
        "kafka.bootstrap.servers": bootstrap_servers,
        "kafka.default.api.timeout.ms": str(attempt_ms),
        "kafka.request.timeout.ms": str(attempt_ms),
        "fetchOffset.numRetries": str(_ATTEMPTS),
        "fetchOffset.retryIntervalMs": "200",
        "kafkaConsumer.pollTimeoutMs": str(patience_ms),
    }


def sink_options(bootstrap_servers: str, *, patience_ms: int = PATIENCE_MS) -> dict[str, str]:
    """Return options for writes with ``format("kafka")`` and the same limit; by default Kafka waits two minutes."""
    return {
        "kafka.bootstrap.servers": bootstrap_servers,
        "kafka.max.block.ms": str(patience_ms),
        "kafka.delivery.timeout.ms": str(patience_ms),
        "kafka.request.timeout.ms": str(max(1, patience_ms // _ATTEMPTS)),
    }


#: Failures: a pattern of Spark's message, causes included, and a sentence with its groups; the first match counts.
_KNOWN = (
    (
        r"Failed to find (?:the )?data source: kafka",
        f"this session has no Kafka connector: run `{COMMAND}`, and start the session with it",
    ),
    (
        r"Partition (\S+)-(\d+)(?:'s)? offset was changed from (\d+) to (\d+)",
        "the checkpoint stands at offset {2} of {0}-{1} and the log ends at {3}: the topic was deleted and created "
        "again, or the checkpoint is of another broker; begin with a new checkpoint, or accept the gap with "
        "failOnDataLoss=false",
    ),
    (
        r"Partitions Set\(([^)]*)\) have been deleted",
        "the checkpoint is of partitions that are not read any more ({0}): it belongs to a query over other topics, or "
        "they were deleted; use its own checkpoint for each query",
    ),
    (
        r"start offset (\d+) is greater than the resolved end offset (\d+) for topic (\S+) partition (\d+)",
        "the starting offset {0} of {2}-{3} is after the ending one, {1}",
    ),
    (
        r"ata may have been (?:lost|missed)|KAFKA_DATA_LOSS|OffsetOutOfRangeException",
        "records that the query had not read yet were deleted (retention, DeleteRecords or a topic created again): "
        "accept the gap with failOnDataLoss=false, or begin with a new checkpoint",
    ),
    (
        r"Failed to read log file (?:file:)?(\S+?)\.?\s",
        "the checkpoint is damaged ({0} cannot be read): restore it, or begin with a new one",
    ),
    (
        r'Expected e\.g\. \{"topicA"',
        "the checkpoint is of a query over another kind of source: use its own checkpoint for each query",
    ),
    (
        r"to transaction before completing a call to initTransactions",
        "Spark's Kafka sink uses no transactions: remove kafka.transactional.id",
    ),
    (
        r"errors\.UnknownTopicOrPartitionException",
        "a topic or partition that the query names does not exist at {servers}",
    ),
    (
        r"(?:errors|concurrent)\.(?:TimeoutException|DisconnectException)",
        "no broker responded in time at {servers}: check that one is running there",
    ),
)


def explain(error: BaseException, bootstrap_servers: str) -> str | None:
    """Return one sentence for a failure of a query over the connector, or None if the failure is unknown."""
    for pattern, sentence in _KNOWN:
        found = re.search(pattern, str(error))
        if found is not None:
            return sentence.format(*found.groups(), servers=bootstrap_servers)
    return None


@contextlib.contextmanager
def clear_failures(bootstrap_servers: str) -> Iterator[None]:
    """Replace a known failure of a query over the connector by a sentence.

    Raises: PipelineError, with Spark's error as its cause; any other error of the block unchanged.
    """
    try:
        yield
    except Exception as error:
        sentence = explain(error, bootstrap_servers)
        if sentence is None:
            raise
        raise PipelineError(sentence) from error
