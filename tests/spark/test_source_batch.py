"""``format("kbroker")`` in batch queries: found without registration, exact records, clear errors."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kbroker.client.cluster import Cluster
from kbroker.client.producer import CODECS, Producer
from kbroker.client.quotas import QuotaClient
from kbroker.common.quotas import QuotaEntity
from tests.spark.source_support import create, fill, refusal, values
from tests.support.broker import BrokerProcess

pyspark = pytest.importorskip("pyspark")

Read = Callable[..., Any]


@pytest.fixture
def cluster(broker: BrokerProcess) -> Iterator[Cluster]:
    with Cluster(broker.bootstrap) as opened:
        yield opened


@pytest.fixture
def read(spark: Any, broker: BrokerProcess) -> Read:
    """Return a function that loads with options, whose dots are written as __."""

    def load(**options: str) -> Any:
        given = {"kafka.bootstrap.servers": broker.bootstrap, **{k.replace("__", "."): v for k, v in options.items()}}
        return spark.read.format("kbroker").options(**given).load()

    return load


def test_every_codec_column_and_null_comes_through(read: Read, cluster: Cluster) -> None:
    """Rows equal the records of any codec: keys, tombstones, headers, times, offsets."""
    create(cluster, "t", 2)
    for codec in CODECS:
        with Producer(cluster, codec=codec) as producer:
            producer.send("t", codec.encode(), b"k", partition=0, timestamp_ms=1_767_225_600_123)
            producer.send("t", None, None, partition=1, timestamp_ms=5, headers=[("h", b"x"), ("n", None)])
    frame = read(subscribe="t", includeHeaders="true")
    assert frame.columns == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]
    rows = frame.selectExpr("*", "unix_micros(timestamp) AS us").orderBy("partition", "offset").collect()
    assert [(r.key, r.value, r.topic, r.partition, r.offset, r.us, r.timestampType, r.headers) for r in rows[:5]] == [
        (b"k", codec.encode(), "t", 0, i, 1_767_225_600_123_000, 0, None) for i, codec in enumerate(CODECS)
    ]
    assert [(r.key, r.value, r.partition, r.us, [tuple(h) for h in r.headers]) for r in rows[5:]] == [
        (None, None, 1, 5000, [("h", b"x"), ("n", None)])
    ] * 5


def test_offsets_times_and_splits(read: Read, cluster: Cluster) -> None:
    """A range given by offsets or by times is read exactly, in the requested number of tasks."""
    create(cluster, "t", 2)
    for partition in (0, 1):
        fill(cluster, "t", 100, partition, first=1000 * partition)
    both = read(
        subscribe="t", startingOffsets='{"t":{"0":10,"1":-2}}', endingOffsets='{"t":{"0":20,"1":-1}}', columns="value"
    )
    assert values(both) == [*range(10, 20), *range(1000, 1100)]
    timed = read(
        subscribe="t",
        startingTimestamp="1001050",
        endingTimestamp="1001060",
        startingOffsetsByTimestampStrategy="latest",
    )
    assert values(timed) == list(range(1050, 1060))
    assert "no record at or after" in refusal(lambda: read(subscribe="t", startingTimestamp="1001050").count())
    assert read(assign='{"t":[1]}', columns="value", minPartitions="5").rdd.getNumPartitions() == 5
    assert values(read(assign='{"t":[1]}', columns="value", minPartitions="5")) == list(range(1000, 1100))
    assert read(subscribe="t", columns="offset", maxRecordsPerPartition="30").rdd.getNumPartitions() == 8


def test_columns_are_narrowed_by_option_or_schema(
    read: Read, spark: Any, broker: BrokerProcess, cluster: Cluster
) -> None:
    """Only the named columns are read, in that order; a user's schema has the same effect, and must be right."""
    create(cluster, "t")
    fill(cluster, "t", 3)
    frame = read(subscribe="t", columns="offset,value")
    assert [tuple(row) for row in frame.orderBy("offset").collect()] == [(i, b"%d" % i) for i in range(3)]
    given = spark.read.format("kbroker").option("kafka.bootstrap.servers", broker.bootstrap).option("subscribe", "t")
    assert [tuple(r) for r in given.schema("topic string, offset bigint").load().orderBy("offset").collect()] == [
        ("t", i) for i in range(3)
    ]
    assert "it must be offset:bigint" in refusal(lambda: given.schema("offset string").load().collect())


def test_patterns_and_empty_topics(read: Read, cluster: Cluster) -> None:
    """A pattern matches whole names; a topic without records has no rows."""
    for topic in ("logs-a", "logs-b", "my-logs-c"):
        create(cluster, topic)
    fill(cluster, "logs-a", 3)
    fill(cluster, "my-logs-c", 5)
    assert read(subscribePattern="logs-.*").count() == 3
    assert read(subscribe="logs-b").count() == 0
    assert "fits no topic" in refusal(lambda: read(subscribePattern="x.*").count())


def test_mistakes_end_in_one_sentence(read: Read, cluster: Cluster) -> None:
    """Spark's message contains kbroker's sentence, and of its frames only the one that raised it."""
    create(cluster, "t")
    fill(cluster, "t", 10)
    for expected, options in (
        ("topic 'nope' does not exist", {"subscribe": "nope"}),
        ("kafka.group.id is not supported", {"subscribe": "t", "kafka__group__id": "g"}),
        ("127.0.0.1:1: connection refused", {"subscribe": "t", "kafka__bootstrap__servers": "127.0.0.1:1"}),
        ("lacks t-0 and names t-7, not read", {"subscribe": "t", "startingOffsets": '{"t":{"7":0}}'}),
        ("it cannot be read from 11 on", {"subscribe": "t", "startingOffsets": '{"t":{"0":11}}'}),
        ("it cannot be read up to 11", {"subscribe": "t", "endingOffsets": '{"t":{"0":11}}'}),
    ):
        shown = refusal(lambda options=options: read(**options).count())  # type: ignore[misc]
        assert expected in shown
        assert shown.count("  File ") == 1, shown


def test_retention_is_data_loss_unless_set_otherwise(read: Read, cluster: Cluster) -> None:
    """Deleted offsets are an error; failOnDataLoss=false reads the remaining records."""
    create(cluster, "t")
    fill(cluster, "t", 10)

    def delete_before(offset: int) -> None:
        partitions = [{"PartitionIndex": 0, "Offset": offset}]
        cluster.request(21, {"Topics": [{"Name": "t", "Partitions": partitions}], "TimeoutMs": 5000})

    delete_before(4)
    options = {"subscribe": "t", "startingOffsets": '{"t":{"0":1}}', "endingOffsets": '{"t":{"0":8}}'}
    assert "set failOnDataLoss=false" in refusal(lambda: read(**options).count())
    assert values(read(**options, failOnDataLoss="false")) == [4, 5, 6, 7]
    delete_before(10)
    assert "t-0 has no records before offset 10, it cannot be read from 1 on" in refusal(
        lambda: read(**options).count()
    )


def test_a_large_topic_is_complete(read: Read, cluster: Cluster) -> None:
    """Over many fetches and many Arrow batches no record is missing, duplicated or out of order."""
    create(cluster, "t")
    fill(cluster, "t", 120_000)
    row = (
        read(subscribe="t", kafka__max__partition__fetch__bytes="100000")
        .selectExpr("count(*)", "sum(cast(cast(value AS string) AS bigint) - offset)", "count(DISTINCT offset)")
        .first()
    )
    assert tuple(row) == (120_000, 0, 120_000)


def test_a_consumer_quota_slows_a_query_and_does_not_end_it(
    spark: Any, start_broker: Callable[..., BrokerProcess]
) -> None:
    """A throttle time longer than the time for retries is not a failure, and every record is read."""
    slow = start_broker(quota__window__num="2", quota__window__size__seconds="1")
    with Cluster(slow.bootstrap) as cluster:
        create(cluster, "t")
        with Producer(cluster, batch_size_bytes=2_000) as producer:
            for number in range(60):
                producer.send("t", b"%d" % number + bytes(1_000), partition=0)
                producer.flush()
        QuotaClient(cluster).alter({QuotaEntity.of({"client-id": "slow"}): {"consumer_byte_rate": 15_000.0}})
    given = {"kafka.bootstrap.servers": slow.bootstrap, "kafka.client.id": "slow", "subscribe": "t"}
    began = time.monotonic()
    frame = spark.read.format("kbroker").options(**given, **{"kafka.default.api.timeout.ms": "100"}).load()
    assert sorted(int(bytes(row.value).rstrip(b"\0")) for row in frame.select("value").collect()) == list(range(60))
    assert time.monotonic() - began > 1
