"""``format("kbroker")`` with read_committed over the transactions of a real client, some of them aborted."""

from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from kbroker.client.cluster import Cluster
from tests.spark.source_support import Stream, create, values
from tests.support.broker import BrokerProcess

SIZE = 50  # records of a transaction, in several batches


def transaction(producer: Producer, first: int, *, partition: int = 0, flush_every: int = 10) -> None:
    """Begin a transaction and send SIZE numbers from `first` on, in batches of `flush_every`; leave it open."""
    producer.begin_transaction()
    for number in range(first, first + SIZE):
        producer.produce("t", b"%d" % number, partition=partition)
        if number % flush_every == flush_every - 1:
            assert producer.flush(30) == 0


def begun(bootstrap: str, name: str) -> Producer:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name, "linger.ms": 0})
    producer.init_transactions(30)
    return producer


def test_what_a_real_producer_aborted_is_left_out(spark: Any, broker: BrokerProcess, tmp_path: Path) -> None:
    """Aborted records are left out in one Fetch and in many, in ranges within a transaction, in batches and streams."""
    with Cluster(broker.bootstrap) as cluster:
        create(cluster, "t", 2)
    one, other = begun(broker.bootstrap, "one"), begun(broker.bootstrap, "other")
    both = [number for first in (1000, 3000, 4000) for number in range(first, first + SIZE)]
    transaction(one, 0)
    transaction(other, 1000)  # between the batches of the first and its marker
    one.abort_transaction(30)
    transaction(one, 2000)
    other.commit_transaction(30)
    one.abort_transaction(30)
    transaction(one, 3000)
    one.commit_transaction(30)
    transaction(other, 4000, partition=1)
    other.commit_transaction(30)
    transaction(other, 5000, partition=1)
    other.abort_transaction(30)
    transaction(one, 6000)  # stays open for now

    def read(**options: str) -> list[int]:
        given = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "t", **options}
        return values(spark.read.format("kbroker").options(**given).load())

    committed = {"kafka.isolation.level": "read_committed"}
    assert read(**committed) == both
    assert read(**committed, **{"kafka.max.partition.fetch.bytes": "500"}) == both
    assert read(**committed, maxRecordsPerPartition="7") == both  # a range of 7 offsets starts anywhere
    assert len(read()) == 7 * SIZE
    query = Stream(
        spark, broker.bootstrap, tmp_path / "checkpoint", subscribe="t", startingOffsets="earliest",
        maxOffsetsPerTrigger="40", kafka__isolation__level="read_committed",
    )  # fmt: skip
    query.run()
    assert query.rows() == both
    one.commit_transaction(30)
    query.run()
    assert query.rows() == [*both, *range(6000, 6000 + SIZE)]
