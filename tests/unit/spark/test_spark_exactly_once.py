"""The transaction of a task without a broker."""

from typing import Any
from unittest import mock

import pytest

from kbroker.spark.datasource import exactly_once
from kbroker.spark.datasource.options import write_options


def test_a_producer_has_the_options_of_its_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The producer of a task has the writer's compression, size of batches and time-outs."""
    made: list[tuple[Any, dict[str, Any]]] = []

    def make(*args: Any, **more: Any) -> Any:
        made.append((args, more))
        return mock.Mock()

    monkeypatch.setattr(exactly_once, "TransactionalProducer", make)
    options = write_options(
        {
            "kafka.bootstrap.servers": "h:1",
            "topic": "t",
            "kafka.transactional.id": "copy",
            "kafka.transaction.timeout.ms": "1234",
            "kafka.compression.type": "lz4",
            "kafka.batch.size": "777",
            "kafka.request.timeout.ms": "4321",
        }
    )
    cluster: Any = object()
    exactly_once.fencing_producer(cluster, options, "copy-5")
    settings = {"transaction_timeout_ms": 1234, "codec": options.codec, "batch_size_bytes": 777, "timeout_ms": 4321}
    assert made == [((cluster, "copy-5"), settings)]
