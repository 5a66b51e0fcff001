"""Progress of a stream with a scripted broker: number of requests, offsets, and lost data."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from uuid import UUID

import pytest

from kbroker.client.cluster import Cluster
from kbroker.protocol.records import Record, build_batch
from kbroker.spark.datasource.offset_lookup import Lookup
from kbroker.spark.datasource.offsets import SourceOffset
from kbroker.spark.datasource.options import read_options
from kbroker.spark.datasource.stream_progress import StreamProgress
from kbroker.spark.errors import PipelineError
from tests.support.fake_log import LIST_OFFSETS, METADATA, FakeLogBroker, FakeTime
from tests.support.fixtures import fixture_of

Start = Callable[..., StreamProgress]

A, B = ("t", 0), ("t", 1)
ID = UUID(int=1)


@pytest.fixture
def broker() -> Iterator[FakeLogBroker]:
    with FakeLogBroker() as fake:
        fake.partitions = {"t": 2}
        fill(fake, 0, 10)
        yield fake


time = fixture_of(FakeTime)


def fill(broker: FakeLogBroker, partition: int, count: int) -> None:
    first = broker.end("t", partition)
    batch = build_batch([(None, b"x")] * count, base_offset=first)
    broker.logs.setdefault(("t", partition), []).append(batch)


@pytest.fixture
def start(broker: FakeLogBroker, time: FakeTime) -> Iterator[Start]:
    opened = []

    def make(**more: str) -> StreamProgress:
        options = read_options({"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "t", **more}, streaming=True)
        cluster = Cluster(broker.bootstrap, clock=time.clock, sleep=time.sleep, retry_timeout_s=2)
        opened.append(cluster)
        return StreamProgress(Lookup(cluster, options), options)

    yield make
    for cluster in opened:
        cluster.close()


def test_an_idle_stream_asks_little_over_one_connection(start: Start, broker: FakeLogBroker, time: FakeTime) -> None:
    """A thousand polls in ten seconds send at most ten ListOffsets and one Metadata a second on one socket."""
    progress = start()
    last = progress.next_end(None)
    before = len(broker.asked(LIST_OFFSETS)), len(broker.asked(METADATA))
    for _ in range(1000):
        time.advance(0.01)
        last = progress.next_end(last)
    asked = len(broker.asked(LIST_OFFSETS)) - before[0], len(broker.asked(METADATA)) - before[1]
    assert 90 <= asked[0] <= 100
    assert 9 <= asked[1] <= 10
    assert len(broker.seen) - sum(before) - sum(asked) == 1  # ApiVersions
    assert len(broker.sockets) == 1


def test_the_first_end_says_where_the_first_batch_begins(start: Start, broker: FakeLogBroker) -> None:
    """The end contains its start, so that a restart reads the same range although latest has changed."""
    end = start().next_end(None)
    assert end.start == SourceOffset({A: 10, B: 0}, {"t": ID})
    fill(broker, 0, 5)
    again = start()
    assert end.start is not None
    assert [r.size for r in again.ranges(end.start, end)] == [0, 0]
    following = again.next_end(end)
    assert following == SourceOffset({A: 15, B: 0}, {"t": ID})
    assert [(r.from_offset, r.until_offset) for r in again.ranges(end, following)] == [(10, 15), (0, 0)]


def test_nothing_new_is_the_same_offset(start: Start) -> None:
    """Spark compares the text of offsets: without new records the same object is returned, its start included."""
    progress = start(startingOffsets="earliest")
    end = progress.next_end(None)
    assert progress.next_end(end) is end


def test_limits(start: Start, broker: FakeLogBroker, time: FakeTime) -> None:
    """The maximum limits a batch, the minimum delays one until maxTriggerDelay, and the trigger once ignores both."""
    progress = start(startingOffsets="earliest", maxOffsetsPerTrigger="4")
    assert progress.next_end(None).offsets == {A: 4, B: 0}
    assert progress.next_end(None, all_there_is=True).offsets == {A: 10, B: 0}
    progress = start(startingOffsets="earliest", minOffsetsPerTrigger="11", maxTriggerDelay="30s")
    assert progress.next_end(None).offsets == {A: 0, B: 0}
    time.advance(29)
    assert progress.next_end(None).offsets == {A: 0, B: 0}
    time.advance(1)
    assert progress.next_end(None).offsets == {A: 10, B: 0}
    fill(broker, 1, 1)
    time.advance(1)
    assert progress.next_end(None).offsets == {A: 10, B: 1}


def test_a_limit_by_time(start: Start, broker: FakeLogBroker) -> None:
    """Each batch ends at one time in both partitions, so that no later batch has an older record."""
    broker.logs = {
        A: [build_batch([Record(None, b"x", 1000 * n) for n in range(100, 120)])],  # one record a second
        B: [build_batch([Record(None, b"x", 100_000 + 10 * n) for n in range(200)])],  # a hundred records a second
    }
    progress = start(startingOffsets="earliest", maxOffsetsPerTrigger="60", maxOffsetsByTime="true")
    progress.stop_at_now()
    end = progress.next_end(None)
    ends = [(0, 0), (end.offsets[A], end.offsets[B])]
    while ends[-1] != (20, 200):
        end = progress.next_end(end)
        ends.append((end.offsets[A], end.offsets[B]))
        assert len(ends) < 10
    for (a, b), (c, d) in pairwise(ends):
        assert 30 <= c - a + d - b <= 60 or (c, d) == (20, 200)
        assert c == 20 or d == 200 or abs((100_000 + 1000 * c) - (100_000 + 10 * d)) <= 1000
    assert len(broker.asked(LIST_OFFSETS)) < 150


def test_available_now_goes_no_further(start: Start, broker: FakeLogBroker, time: FakeTime) -> None:
    """Records that arrive after the start of the query are left for the next one."""
    progress = start(startingOffsets="earliest")
    progress.stop_at_now()
    fill(broker, 0, 5)
    time.advance(10)
    end = progress.next_end(None)
    assert end.offsets == {A: 10, B: 0}
    assert progress.next_end(end) is end


def test_a_new_partition_begins_at_its_beginning(start: Start, broker: FakeLogBroker, time: FakeTime) -> None:
    """Records written before the partition was discovered are in the next batch."""
    progress = start()
    end = progress.next_end(None)
    broker.partitions["t"] = 3
    broker.begins["t", 2] = 2
    fill(broker, 2, 3)
    time.advance(2)
    following = progress.next_end(end)
    assert following.offsets == {A: 10, B: 0, ("t", 2): 5}
    assert [(r.from_offset, r.until_offset) for r in progress.ranges(end, following)][2] == (2, 5)


def test_a_topic_made_again(start: Start, broker: FakeLogBroker, time: FakeTime) -> None:
    """Equal offsets under another topic id are other records: an error, or a new start from the beginning."""
    strict, lenient = start(startingOffsets="earliest"), start(startingOffsets="earliest", failOnDataLoss="false")
    end = strict.next_end(None)
    assert lenient.next_end(None) == end
    broker.ids["t"] = UUID(int=9)
    time.advance(2)
    with pytest.raises(PipelineError, match=r"not the one that was read so far.*set failOnDataLoss=false"):
        strict.next_end(end)
    following = lenient.next_end(end)
    assert following.topic_ids == {"t": UUID(int=9)}
    assert [(r.from_offset, r.until_offset, r.topic_id) for r in lenient.ranges(end, following)] == [
        (0, 10, UUID(int=9)),
        (0, 0, UUID(int=9)),
    ]


def test_a_log_that_became_shorter(start: Start, broker: FakeLogBroker, time: FakeTime) -> None:
    """A shorter log is an error for lost data, or the query continues from its end."""
    strict, lenient = start(startingOffsets="earliest"), start(startingOffsets="earliest", failOnDataLoss="false")
    end = strict.next_end(None)
    assert lenient.next_end(None) == end
    del broker.logs["t", 0]
    fill(broker, 0, 4)
    time.advance(2)
    with pytest.raises(PipelineError, match="partition t-0 ends at 4, but was read until 10"):
        strict.next_end(end)
    following = lenient.next_end(end)
    assert following.offsets == {A: 4, B: 0}
    assert [r.size for r in lenient.ranges(end, following)] == [0, 0]


def test_a_deleted_topic(start: Start, broker: FakeLogBroker, time: FakeTime) -> None:
    """The error names the missing partitions."""
    progress = start()
    end = progress.next_end(None)
    broker.partitions.clear()
    time.advance(2)
    with pytest.raises(PipelineError, match="partitions t-0, t-1 are missing"):
        progress.next_end(end)


def test_a_checkpoint_of_other_topics(start: Start) -> None:
    """A checkpoint without a topic of the query belongs to another query."""
    with pytest.raises(PipelineError, match="the checkpoint is of a query over u, w, this one reads t"):
        start().next_end(SourceOffset({("u", 0): 1, ("w", 0): 1}))


def test_what_the_official_connector_left_is_continued(start: Start) -> None:
    """The connector's offsets have no topic ids; the next offset has them."""
    assert start().next_end(SourceOffset({A: 3, B: 0})) == SourceOffset({A: 10, B: 0}, {"t": ID})
