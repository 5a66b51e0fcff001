"""Reading of one partition: prefetched requests, retried failures, and unexpected ends."""

import itertools
import struct
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from kbroker.client.cluster import Cluster
from kbroker.client.connection import BrokerConnectionError, Connection
from kbroker.client.partition_reader import FetchSettings, PartitionReader, TopicReplacedError
from kbroker.common.errors import Errors, KafkaError
from kbroker.protocol.records import build_batch, iter_records
from tests.support.fake_broker import Body
from tests.support.fake_log import FETCH, METADATA, FakeLogBroker, FakeTime
from tests.support.fixtures import fixture_of

ID = UUID(int=1)


@pytest.fixture
def broker() -> Iterator[FakeLogBroker]:
    with FakeLogBroker() as fake:
        fake.logs["t", 0] = [build_batch([(None, b"%d" % i)] * 2, base_offset=2 * i) for i in range(5)]
        yield fake


time = fixture_of(FakeTime)


@pytest.fixture
def cluster(broker: FakeLogBroker, time: FakeTime) -> Iterator[Cluster]:
    with Cluster(broker.bootstrap, clock=time.clock, sleep=time.sleep, retry_timeout_s=5) as opened:
        yield opened


def offsets(reader: PartitionReader) -> list[int]:
    return [record.offset for part in reader for record in iter_records(part.data)]


def reader(cluster: Cluster, begin: int = 0, until: int = 10, topic_id: UUID | None = ID) -> PartitionReader:
    return PartitionReader(cluster, "t", 0, begin, until, topic_id, FetchSettings(max_partition_bytes=200))


def test_the_next_fetch_is_sent_before_the_last_is_handed_over(cluster: Cluster, broker: FakeLogBroker) -> None:
    """The next request is sent before the caller processes a response."""
    parts = iter(reader(cluster))
    assert next(parts).fetch_offset == 0
    assert next(parts).fetch_offset == 4  # the response to the second request has arrived, so a third may be sent
    assert [r.offset for part in parts for r in iter_records(part.data)] == [8, 9]
    assert [body["Topics"][0]["Partitions"][0]["FetchOffset"] for _, body in broker.asked(FETCH)] == [0, 4, 8]


def test_it_ends_at_the_given_offset(cluster: Cluster, broker: FakeLogBroker) -> None:
    """No request goes beyond the batch that holds the last offset."""
    assert offsets(reader(cluster, 3, 6)) == [2, 3, 4, 5]
    assert len(broker.asked(FETCH)) == 1


def test_responses_share_one_memory(cluster: Cluster) -> None:
    """Responses reuse one block of memory instead of allocating and clearing another."""
    memories = {id(part.data.obj): part.data.obj for part in reader(cluster)}  # kept, so that no id is reused
    assert len(memories) == 1


def test_names_serve_where_ids_are_not_known(cluster: Cluster, broker: FakeLogBroker) -> None:
    """Without an id topics are requested by name, in a version that has names."""
    assert offsets(reader(cluster, topic_id=None)) == list(range(10))
    assert {version for version, _ in broker.asked(FETCH)} == {12}


def test_a_topic_made_again_is_refused_at_once(cluster: Cluster, broker: FakeLogBroker) -> None:
    """The id in the metadata or in a Fetch response reveals that the topic was deleted and created again."""
    with pytest.raises(TopicReplacedError, match="topic 't' was deleted and created again"):
        offsets(reader(cluster, topic_id=UUID(int=2)))
    assert broker.asked(FETCH) == []
    parts = iter(reader(cluster))
    next(parts)
    broker.ids["t"] = UUID(int=2)
    with pytest.raises(TopicReplacedError):
        list(parts)


def test_an_abandoned_reader_leaves_no_response_behind(cluster: Cluster, broker: FakeLogBroker) -> None:
    """A reader that stops early does not leave its response to the next request of the connection."""
    parts = iter(reader(cluster))
    next(parts)
    parts.close()  # type: ignore[attr-defined]
    assert cluster.fetch_metadata(["t"])[0].name == "t"


@pytest.mark.parametrize(
    "failure", [BrokerConnectionError(("here", 1), "gone"), KafkaError(Errors.LEADER_NOT_AVAILABLE)]
)
def test_a_response_is_kept_when_the_next_request_fails(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    """The records of a response are handed over, although the leader ended before the next request."""
    send, calls = PartitionReader._send, itertools.count()

    def send_or_fail(one: PartitionReader) -> Any:
        if next(calls) == 1:
            raise failure
        return send(one)

    monkeypatch.setattr(PartitionReader, "_send", send_or_fail)
    assert offsets(reader(cluster)) == list(range(10))


def test_failures_that_pass_are_tried_again(cluster: Cluster, broker: FakeLogBroker, time: FakeTime) -> None:
    """A changed leader and a lost connection are retried after fresh metadata, and no record is lost."""
    responses = iter([6, None])
    real = broker.fetch

    def failing(version: int, body: Body) -> Body | None:
        error = next(responses, 0)
        if error is None:
            return None
        response = real(version, body)
        response["Responses"][0]["Partitions"][0]["ErrorCode"] = error
        return response

    broker.handlers[FETCH] = failing
    assert offsets(reader(cluster)) == list(range(10))
    assert time.now > 100
    assert len(broker.asked(METADATA)) == 3


def test_a_stopped_broker_is_reported_when_retries_are_over(
    cluster: Cluster, broker: FakeLogBroker, time: FakeTime
) -> None:
    """The error has the broker's address and is raised seconds after the last byte."""
    parts = iter(reader(cluster))
    next(parts)
    broker.close()
    with pytest.raises(BrokerConnectionError, match=f"{broker.bootstrap}: "):
        list(parts)
    assert time.now - 100 <= 6.5  # five seconds, and the second for which a topic may be unknown


def test_other_failures_are_not_tried_again(cluster: Cluster, broker: FakeLogBroker) -> None:
    """An offset outside the log is an error without a retry."""
    with pytest.raises(KafkaError) as caught:
        offsets(reader(cluster, 11, 12))
    assert caught.value.error is Errors.OFFSET_OUT_OF_RANGE
    assert "partition t-0 at offset 11" in str(caught.value)
    assert len(broker.asked(FETCH)) == 1


def test_a_log_that_ends_early_is_reported(cluster: Cluster, broker: FakeLogBroker, time: FakeTime) -> None:
    """If no record arrives within the time for retries, the error names the missing offsets."""
    real = broker.fetch

    def slow(version: int, body: Body) -> Body:
        time.now += 0.5
        return real(version, body)

    broker.handlers[FETCH] = slow
    with pytest.raises(
        KafkaError, match="partition t-0 at offset 10: expected records up to offset 12, got none within 5 s"
    ):
        offsets(reader(cluster, 8, 12))


@pytest.mark.parametrize(
    ("records", "message"),
    [
        (struct.pack(">qiIbb", 0, 14, 0, 1, 0) + struct.pack(">ii", -1, -1), "message format 1"),
        (build_batch([(None, b"x")])[:-1], "a batch cut after"),
        (build_batch([(None, b"x")], base_offset=0), "a batch that ends at offset 0"),
    ],
)
def test_responses_that_lead_nowhere_are_errors(
    cluster: Cluster, broker: FakeLogBroker, records: bytes, message: str
) -> None:
    """An old format, a truncated first batch, and batches before the offset are errors, not endless loops."""

    def response(version: int, body: Body) -> Body:
        part = {"PartitionIndex": 0, "HighWatermark": 10, "LastStableOffset": 10, "Records": records}
        return {"Responses": [{"TopicId": UUID(int=1), "Partitions": [part]}]}

    broker.handlers[FETCH] = response
    with pytest.raises(KafkaError, match=message):
        offsets(reader(cluster, 1))


def throttled(broker: FakeLogBroker, time: FakeTime, milliseconds: int, times: int) -> None:
    """Throttle the first Fetches as Kafka does over a quota: no partition, a throttle time, silence until its end."""
    real, number = broker.fetch, itertools.count()

    def fetch(version: int, body: Body) -> Body:
        before = next(number)
        if 0 < before <= times:  # sent at once, read after the throttle time, and late
            time.advance(milliseconds / 1000 + 4.9)
        if before < times:
            return {"ThrottleTimeMs": milliseconds, "Responses": []}
        return real(version, body)

    broker.handlers[FETCH] = fetch


def test_a_throttled_fetch_is_no_failure(cluster: Cluster, broker: FakeLogBroker, time: FakeTime) -> None:
    """A throttled fetch is repeated at its offset, and its reported time counts against no time-out."""
    throttled(broker, time, 4_000, 3)  # retries end after five seconds
    seen: list[float] = []
    patient = reader(cluster)
    patient.on_throttle = seen.append
    assert offsets(patient) == list(range(10))
    assert seen == [4.0, 4.0, 4.0]
    assert [body["Topics"][0]["Partitions"][0]["FetchOffset"] for _, body in broker.asked(FETCH)[:4]] == [0, 0, 0, 0]


def test_the_response_behind_a_throttle_is_waited_for_as_long_as_it_lasts(
    cluster: Cluster, broker: FakeLogBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker reads no request during the throttle time, so the time-out starts after it."""
    real, responses = broker.fetch, iter([{"ThrottleTimeMs": 60_000, "Responses": []}])
    broker.handlers[FETCH] = lambda version, body: next(responses, None) or real(version, body)
    waits: list[float] = []
    receive = Connection.receive_response

    def noting(connection: Connection, correlation_id: int, *, timeout_s: float, **more: Any) -> Any:
        waits.append(timeout_s)
        return receive(connection, correlation_id, timeout_s=timeout_s, **more)

    monkeypatch.setattr(Connection, "receive_response", noting)
    assert offsets(reader(cluster, until=3)) == [0, 1, 2, 3]
    assert waits == [30.5, 90.5]  # request_timeout_s and max_wait_ms, and the minute


def test_records_that_come_with_a_throttle_time_are_read(cluster: Cluster, broker: FakeLogBroker) -> None:
    """A broker before KIP-219 delays the response with its records, so its throttle time causes no further wait."""
    real, throttles = broker.fetch, itertools.repeat(1, 20)
    broker.handlers[FETCH] = lambda version, body: {**real(version, body), "ThrottleTimeMs": next(throttles, 0)}
    seen: list[float] = []
    patient = reader(cluster)
    patient.on_throttle = seen.append
    assert offsets(patient) == list(range(10))
    assert seen == []


def test_time_beyond_the_throttles_counts(cluster: Cluster, broker: FakeLogBroker, time: FakeTime) -> None:
    """The error for a log that ends early is delayed by the throttle time, and no longer."""
    real, asked = broker.fetch, []

    def fetch(version: int, body: Body) -> Body:
        asked.append(time.now)
        if len(asked) == 1:
            return {"ThrottleTimeMs": 20_000, "Responses": []}
        time.advance(20 if len(asked) == 2 else 1)
        return real(version, body)

    broker.handlers[FETCH] = fetch
    with pytest.raises(KafkaError, match="expected records up to offset 12, got none within 5 s"):
        offsets(reader(cluster, 10, 12))
    assert time.now == 126  # 20 s throttled, then more than 5


def test_an_empty_response_without_a_throttle_is_still_refused(
    cluster: Cluster, broker: FakeLogBroker, time: FakeTime
) -> None:
    """A response without the requested partition is valid only with a throttle time."""
    broker.handlers[FETCH] = lambda version, body: {"ThrottleTimeMs": 0, "Responses": []}
    with pytest.raises(BrokerConnectionError, match="does not match its request"):
        offsets(reader(cluster))
