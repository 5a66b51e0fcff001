"""Client libraries that start from kbroker's address produce to and consume from partitions of Apache Kafka."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.clients.programs import make_client
from tests.clients.python_clients import Record
from tests.support.member_node import MemberNode

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.parametrize("name", ["confluent-kafka", "kafka-python", "franz-go", "java-console"])
def test_libraries_start_from_kbroker(name: str, member: MemberNode, tmp_path: Path) -> None:
    """Create, produce as an idempotent producer, whose id kbroker may give, and consume."""
    client = make_client(name, member.bootstrap, tmp_path)
    topic = f"library-{name}"
    client.create(topic, 1)
    records = [Record(f"{name} {number}".encode(), int(time.time() * 1000)) for number in range(20)]
    client.produce(topic, 0, records, codec="gzip", idempotent=True)
    found = client.consume(topic, 0, len(records))
    assert [record.value for record in found] == [record.value for record in records]
