"""Spark's own Kafka connector: options that shorten its time-outs, and sentences for its failures."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator

from kbroker.spark.errors import PipelineError
from kbroker.spark.setup.jars import COMMAND

PATIENCE_MS = 10_000
_ATTEMPTS = 2


def source_options(bootstrap_servers: str, *, patience_ms: int = PATIENCE_MS) -> dict[str, str]:
    """Return options for ``format("kafka")`` of reads: a stopped broker is an error after about `patience_ms`.

    The connector's own defaults wait three minutes on the driver and two in a task. Up to that time a broker may be
    away without a query noticing.
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
    """Return options for ``format("kafka")`` of writes with the same bound; by default Kafka waits two minutes."""
    return {
        "kafka.bootstrap.servers": bootstrap_servers,
        "kafka.max.block.ms": str(patience_ms),
        "kafka.delivery.timeout.ms": str(patience_ms),
        "kafka.request.timeout.ms": str(max(1, patience_ms // _ATTEMPTS)),
    }


def _moved(found: re.Match[str], bootstrap_servers: str) -> str:
    topic, partition, old, new = found.groups()
    return (
        f"the checkpoint stands at offset {old} of {topic}-{partition} and the log ends at {new}: the topic was "
        "deleted and made anew, or the checkpoint is of another broker; begin with a new checkpoint, or accept the gap "
        "with failOnDataLoss=false"
    )


def _deleted(found: re.Match[str], bootstrap_servers: str) -> str:
    return (
        f"the checkpoint is of partitions that are not read any more ({found.group(1)}): it belongs to a query over "
        "other topics, or they were deleted; use its own checkpoint for each query"
    )


def _lost(found: re.Match[str], bootstrap_servers: str) -> str:
    return (
        "records that the query had not read yet were deleted (retention, DeleteRecords or a topic made anew): accept "
        "the gap with failOnDataLoss=false, or begin with a new checkpoint"
    )


def _no_topic(found: re.Match[str], bootstrap_servers: str) -> str:
    return f"a topic or partition that the query names does not exist at {bootstrap_servers}"


def _no_broker(found: re.Match[str], bootstrap_servers: str) -> str:
    return f"no broker answered in time at {bootstrap_servers}: is it running, and is this its address?"


def _damaged(found: re.Match[str], bootstrap_servers: str) -> str:
    return f"the checkpoint is damaged ({found.group(1)} cannot be read): restore it, or begin with a new one"


def _foreign(found: re.Match[str], bootstrap_servers: str) -> str:
    return "the checkpoint is of a query over another kind of source: use its own checkpoint for each query"


def _beyond(found: re.Match[str], bootstrap_servers: str) -> str:
    start, end, topic, partition = found.groups()
    return f"the starting offset {start} of {topic}-{partition} is behind the ending one, {end}"


def _transactional(found: re.Match[str], bootstrap_servers: str) -> str:
    return "Spark's Kafka sink uses no transactions: leave kafka.transactional.id out"


def _no_connector(found: re.Match[str], bootstrap_servers: str) -> str:
    return f"this session has no Kafka connector: run `{COMMAND}`, and start the session with it"


# The first pattern that matches Spark's message, causes included, identifies the failure.
_KNOWN: tuple[tuple[re.Pattern[str], Callable[[re.Match[str], str], str]], ...] = (
    (re.compile(r"Failed to find (?:the )?data source: kafka"), _no_connector),
    (re.compile(r"Partition (\S+)-(\d+)(?:'s)? offset was changed from (\d+) to (\d+)"), _moved),
    (re.compile(r"Partitions Set\(([^)]*)\) have been deleted"), _deleted),
    (
        re.compile(
            r"start offset (\d+) is greater than the resolved end offset (\d+) for topic (\S+) partition (\d+)"
        ),
        _beyond,
    ),
    (re.compile(r"ata may have been (?:lost|missed)|KAFKA_DATA_LOSS|OffsetOutOfRangeException"), _lost),
    (re.compile(r"Failed to read log file (?:file:)?(\S+?)\.?\s"), _damaged),
    (re.compile(r'Expected e\.g\. \{"topicA"'), _foreign),
    (re.compile(r"to transaction before completing a call to initTransactions"), _transactional),
    (re.compile(r"errors\.UnknownTopicOrPartitionException"), _no_topic),
    (re.compile(r"(?:errors|concurrent)\.(?:TimeoutException|DisconnectException)"), _no_broker),
)  # fmt: skip


def explain(error: BaseException, bootstrap_servers: str) -> str | None:
    """Return one sentence for a failure of a query over the connector, or None if the failure is unknown."""
    said = str(error)
    for pattern, sentence in _KNOWN:
        found = pattern.search(said)
        if found is not None:
            return sentence(found, bootstrap_servers)
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
