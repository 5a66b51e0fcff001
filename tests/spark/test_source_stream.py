"""``format("kbroker")`` in streams: exact records over limits, failures, restarts and topic changes."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kbroker.client.admin import Admin
from kbroker.client.cluster import Cluster
from tests.spark.source_support import Stream, create, fill, refusal
from tests.support.broker import BrokerProcess, wait_for

pytest.importorskip("pyspark")

NewStream = Callable[..., Stream]


@pytest.fixture
def cluster(broker: BrokerProcess) -> Iterator[Cluster]:
    with Cluster(broker.bootstrap) as opened:
        create(opened, "t")
        yield opened


@pytest.fixture
def stream(spark: Any, broker: BrokerProcess, tmp_path: Path) -> NewStream:
    """Return a query over topic t with a checkpoint for the test; options have dots as __."""

    def make(**options: str) -> Stream:
        return Stream(spark, broker.bootstrap, tmp_path / "checkpoint", **{"subscribe": "t", **options})

    return make


def test_limits_cut_batches(stream: NewStream, cluster: Cluster) -> None:
    """availableNow reads all records in batches of the limit, and a restart reads only later records."""
    fill(cluster, "t", 1000)
    query = stream(startingOffsets="earliest", maxOffsetsPerTrigger="300")
    done = query.run()
    assert [len(batch) for batch in query.seen] == [300, 300, 300, 100]
    assert query.rows() == list(range(1000))
    assert "1000" in done.lastProgress["sources"][0]["latestOffset"]
    query.run()
    assert len(query.rows()) == 1000
    fill(cluster, "t", 5, first=1000)
    query.run()
    assert query.rows() == list(range(1005))


def test_latest_is_frozen_before_the_first_batch_runs(stream: NewStream, cluster: Cluster) -> None:
    """After a failure of the first batch the restart begins at the same offset, without loss or repetition."""
    fill(cluster, "t", 10)
    query = stream()  # startingOffsets is latest for streams
    query.fails_at = 0
    assert "batch 0 fails" in refusal(query.run)
    fill(cluster, "t", 5, first=10)
    query.fails_at = None
    query.run()
    assert query.rows() == [10, 11, 12, 13, 14]


def test_a_failed_batch_is_read_again(stream: NewStream, cluster: Cluster) -> None:
    """The failed batch is repeated with the same records, and the next batches follow."""
    fill(cluster, "t", 30)
    query = stream(startingOffsets="earliest", maxOffsetsPerTrigger="10")
    query.fails_at = 1
    assert "batch 1 fails with [10, 11, 12, 13, 14, 15, 16, 17, 18, 19]" in refusal(query.run)
    query.fails_at = None
    fill(cluster, "t", 5, first=30)
    query.run()
    assert query.seen == [list(range(10)), list(range(10, 20)), list(range(20, 30)), list(range(30, 35))]


def test_new_partitions_are_read_from_their_beginning(stream: NewStream, cluster: Cluster) -> None:
    """Records written to a partition before the query finds it are read."""
    fill(cluster, "t", 3)
    query = stream(startingOffsets="earliest")
    query.run()
    Admin(cluster).create_partitions("t", 2)
    wait_for("the second partition", lambda: len(Admin(cluster).describe_topics(["t"])[0].partitions) == 2)
    fill(cluster, "t", 4, partition=1, first=100)
    query.run()
    assert query.seen[-1] == [100, 101, 102, 103]


def recreate(cluster: Cluster, topic: str) -> None:
    Admin(cluster).delete_topics([topic])
    wait_for("the topic to go", lambda: topic not in Admin(cluster).list_topics())
    create(cluster, topic)


def test_a_topic_made_again_is_another_topic(stream: NewStream, cluster: Cluster) -> None:
    """A topic with the same name and offsets is an error, or with failOnDataLoss=false a restart."""
    fill(cluster, "t", 10)
    query = stream(startingOffsets="earliest")
    query.run()
    recreate(cluster, "t")
    fill(cluster, "t", 10, first=500)
    shown = refusal(query.run)
    assert "topic 't' is not the one that was read so far" in shown
    assert "failOnDataLoss=false" in shown
    stream_again = stream(startingOffsets="earliest", failOnDataLoss="false")
    stream_again.run()
    assert stream_again.rows() == list(range(500, 510))


def test_a_deleted_topic_is_reported(stream: NewStream, cluster: Cluster) -> None:
    """A deleted topic ends the query with an error that names it."""
    fill(cluster, "t", 10)
    query = stream(startingOffsets="earliest", kafka__default__api__timeout__ms="1000")
    query.run()
    Admin(cluster).delete_topics(["t"])
    assert "partitions t-0 are missing" in refusal(query.run)


def test_a_wrong_checkpoint_is_refused(
    stream: NewStream, cluster: Cluster, spark: Any, tmp_path: Path, broker: BrokerProcess
) -> None:
    """A checkpoint of other topics or of another source is rejected with advice."""
    fill(cluster, "t", 10)
    create(cluster, "u")
    stream(startingOffsets="earliest").run()
    shown = refusal(stream(subscribe="u", startingOffsets="earliest").run)
    assert "the checkpoint is of a query over t, this one reads u" in shown
    place = tmp_path / "rate"
    rate = spark.readStream.format("rate").load().writeStream.format("noop").option("checkpointLocation", str(place))
    rate.trigger(once=True).start().awaitTermination()
    shown = refusal(Stream(spark, broker.bootstrap, place, subscribe="t").run)
    assert "belongs to another query; give this one a separate checkpointLocation" in shown


@contextlib.contextmanager
def ten_rows(stream: NewStream, patience_ms: str) -> Iterator[tuple[Stream, Any]]:
    """A query that has read ten rows and runs until the end of the context."""
    query = stream(startingOffsets="earliest", kafka__default__api__timeout__ms=patience_ms)
    running = query.start(processingTime="100 milliseconds")
    try:
        wait_for("ten rows", lambda: len(query.rows()) == 10, 60)
        yield query, running
    finally:
        running.stop()


def test_a_broker_that_stops_is_reported_within_seconds(
    stream: NewStream, cluster: Cluster, broker: BrokerProcess
) -> None:
    """After the retries the query ends with the broker's address, and a restart continues at its offset."""
    fill(cluster, "t", 10)
    with ten_rows(stream, "3000") as (query, running):
        broker.kill()
        assert f"broker {broker.bootstrap}: connection refused" in refusal(lambda: running.awaitTermination(60))
    broker.start()
    with Cluster(broker.bootstrap) as again:
        fill(again, "t", 5, first=10)
    query.run()
    assert query.rows() == list(range(15))


def test_a_short_absence_is_not_noticed(stream: NewStream, cluster: Cluster, broker: BrokerProcess) -> None:
    """A query continues after a broker's restart within the retries."""
    fill(cluster, "t", 10)
    with ten_rows(stream, "60000") as (query, _):
        broker.kill()
        broker.start()
        with Cluster(broker.bootstrap) as again:
            fill(again, "t", 5, first=10)
        wait_for("the others", lambda: query.rows() == list(range(15)), 60)


@pytest.mark.parametrize(
    ("options", "said"),
    [({"endingOffsets": "latest"}, "endingOffsets is for batch queries"), ({"maxOffsetsPerTrigger": "0"}, "got '0'")],
)
def test_wrong_options_are_the_last_word(options: dict[str, str], said: str, stream: NewStream) -> None:
    """Options are validated where Spark does not hide the error behind its own UnboundLocalError."""
    found = refusal(stream(**options).run)
    assert said in found
    assert "UnboundLocalError" not in found
