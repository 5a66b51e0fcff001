"""Transactions of every client library: commit and abort, both with offsets, and a second producer that fences.

KBROKER_TEST_BOOTSTRAP=host:port selects another broker; Apache Kafka passes.
"""

import json
import sys
import time
from collections.abc import Callable

import pytest

from tests.clients.programs import go_program, java_program, node_folder
from tests.support.broker import run_to_end
from tests.support.kill import create_topic

PROGRAMS: dict[str, Callable[[], list[str]]] = {
    **{
        name: lambda name=name: [sys.executable, "-m", "tests.clients.transactions_python", name]  # type: ignore[misc]
        for name in ("confluent-kafka", "kafka-python", "aiokafka")
    },
    "franz-go": lambda: [str(go_program())],
    "kafkajs": lambda: ["node", str(node_folder() / "transactions.js")],
    "Java": lambda: java_program("Transactions"),
}
# Error of each client's fenced producer; Apache Kafka 4.3.1 causes the same ones.
FENCED = {
    "confluent-kafka": "_FENCED",
    "kafka-python": "ProducerFencedError",
    "aiokafka": "ProducerFenced",
    "franz-go": "PRODUCER_FENCED",
    "kafkajs": "INVALID_PRODUCER_EPOCH",
    "Java": "ProducerFencedException",
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_transactions(name: str, bootstrap: str) -> None:
    """Only committed records are read, the committed offset is the transaction's, and the first producer is fenced."""
    topic = f"transactions-{name}-{time.time_ns():x}"
    for one in (topic, f"{topic}-in"):
        create_topic(bootstrap, one, 1)
    verb = ["transactions"] if name == "franz-go" else []
    found = json.loads(run_to_end([*PROGRAMS[name](), bootstrap, *verb, topic], seconds=120))
    assert found["read"] == [f"{note} {number}" for note in ("commit", "second") for number in range(5)]
    assert found["offset"] == 7
    assert found["fenced"] == FENCED[name]
