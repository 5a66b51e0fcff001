"""Request batches that Python handlers execute: order of frames, and early ends of a batch."""

import random
import struct
import threading
from collections.abc import Callable, Iterator
from typing import cast

import pytest

from kbroker._core.clock import VirtualClock
from kbroker._core.metrics.stats import CumulativeSum
from kbroker.metrics.registry import MetricName
from kbroker.network.request_channel import InboundRequest
from kbroker.protocol import codec
from kbroker.requests.context import ApiContext, RequestContext
from kbroker.testing import EmbeddedBroker, VirtualBroker
from kbroker.testing.waiting import wait_until
from tests.support.client import Body, Client, fetch_body, join_body, new_topics, produce_body, row_of
from tests.support.throttling import SETTINGS, pass_by
from tests.support.wire import Closed

HEARTBEAT, LIST_GROUPS, METADATA, PRODUCE = 12, 16, 3, 0
UNKNOWN_MEMBER_ID = 25
LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SASL = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{LOGIN} user_alice="secret";',
}
ILL_FORMED = struct.pack(">hhih", METADATA, 1, 7, -1) + struct.pack(">i", 2**31 - 1)

Frame = tuple[str, int, Body]
LOOK: Frame = ("Metadata", 8, {"Topics": [], "AllowAutoTopicCreation": False})
GROUPS: Frame = ("ListGroups", 2, {})


def heartbeat(group: str = "none") -> Frame:
    return "Heartbeat", 3, {"GroupId": group, "GenerationId": 1, "MemberId": "x"}


def creation(topic: str, partitions: int = 1) -> Frame:
    return "CreateTopics", 5, new_topics(topic, partitions=partitions)


class Pipeline(Client):
    """Client that sends several requests in one call, so that the broker reads them together."""

    _kept: list[bytes] | None = None

    def send_raw(self, data: bytes) -> None:
        if self._kept is None:
            super().send_raw(data)
        else:
            self._kept.append(data)

    def send_together(self, *frames: Frame) -> None:
        kept = self._kept = []
        for api, version, body in frames:
            self.begin(api, version, body)
        self._kept = None
        self.send_raw(b"".join(kept))


@pytest.fixture
def broker() -> Iterator[VirtualBroker]:
    with VirtualBroker({**SETTINGS, "group.initial.rebalance.delay.ms": "3000"}) as running:
        running.create_topic("t")
        running.context.groups.runtime.prepare()
        yield running


@pytest.fixture
def client(broker: VirtualBroker) -> Iterator[Pipeline]:
    with Pipeline(broker.bootstrap_servers) as connection:
        yield connection


def with_handler(broker: EmbeddedBroker, key: int, handle: Callable[[ApiContext, Body, RequestContext], Body]) -> None:
    broker.apis.entries[key] = broker.apis.entries[key]._replace(handle=handle)


def test_one_handler_executes_a_batch(broker: VirtualBroker, client: Pipeline) -> None:
    """Frames that arrived together wake one handler once, and their responses come in order."""
    broker.wait_until_quiet()
    native_apis, queue = broker.parts.native_apis, broker.parts.python_requests
    declined, wakeups = native_apis.declined, queue.wakeups
    client.send_together(LOOK, heartbeat(), creation("new"), LOOK)
    assert client.end()["Topics"] == []
    assert client.end()["ErrorCode"] == UNKNOWN_MEMBER_ID
    assert client.end()["Topics"][0]["ErrorCode"] == 0
    assert client.end()["Topics"] == []
    assert native_apis.declined - declined == 4
    assert queue.wakeups - wakeups == 1
    assert len(queue) == 0


def test_frames_of_native_handlers_are_executed_in_their_turn(broker: VirtualBroker, client: Pipeline) -> None:
    """A Produce between two Python frames is appended after the first and before the second."""
    client.send_together(
        LOOK,
        ("Produce", 7, produce_body("t")),
        ("ListOffsets", 1, {"ReplicaId": -1, "Topics": [{"Name": "t", "Partitions": [{"Timestamp": -1}]}]}),
        ("Fetch", 11, fetch_body("t")),
        ("Produce", 7, produce_body("t")),
        GROUPS,
    )
    client.end()
    assert row_of(client.end())["BaseOffset"] == 0
    assert client.end()["Topics"][0]["Partitions"][0]["Offset"] == 1
    assert len(row_of(client.end())["Records"]) > 0
    assert row_of(client.end())["BaseOffset"] == 1
    assert client.end()["ErrorCode"] == 0


def test_a_delayed_frame_ends_its_batch(broker: VirtualBroker, client: Pipeline) -> None:
    """Frames after a join that waits for other members are executed after its response."""
    client.send_together(LOOK, ("JoinGroup", 3, join_body("g", 10_000)), creation("late"), heartbeat())
    client.end()
    broker.wait_until_quiet()
    assert not client.has_response
    assert "late" not in broker.topics
    broker.advance_ms(3000)
    assert client.end()["ErrorCode"] == 0
    assert client.end()["Topics"][0]["ErrorCode"] == 0
    assert client.end()["ErrorCode"] == UNKNOWN_MEMBER_ID


def test_a_throttled_frame_ends_its_batch(broker: VirtualBroker, client: Pipeline) -> None:
    """The response of a throttled frame is sent at once, and later frames are executed at the end of the throttle."""
    broker.context.quotas.update(None, "client", "controller_mutation_rate", 1)
    client.send_together(LOOK, creation("many", 20), creation("late"), LOOK)
    client.end()
    assert client.end()["ThrottleTimeMs"] == 9000
    broker.wait_until_quiet()
    assert "late" not in broker.topics
    broker.context.quotas.update(None, "client", "controller_mutation_rate", None)
    broker.advance_ms(8999)
    assert not client.has_response
    broker.advance_ms(1)
    assert client.end()["Topics"][0]["ErrorCode"] == 0
    client.end()


def test_a_closed_connection_ends_its_batch(broker: VirtualBroker, client: Pipeline) -> None:
    """A malformed frame closes the connection after the earlier responses, and later frames are not executed."""
    first, last = (
        codec.encode_request_frame(codec.api_by_name(api).key, version, 0, "client", body)
        for api, version, body in (LOOK, creation("never"))
    )
    client.send_raw(first + struct.pack(">i", len(ILL_FORMED)) + ILL_FORMED + last)
    assert client.receive()[:4] == bytes(4)
    with pytest.raises(Closed):
        client.receive()
    broker.wait_until_quiet()
    assert "never" not in broker.topics


def test_the_end_of_a_session_ends_its_batch() -> None:
    """Frames that wait when the session of their client ends are not executed, and the connection is closed."""
    executed: list[int] = []
    with VirtualBroker({**SASL, "connections.max.reauth.ms": "10000"}) as broker:
        clock = broker.clock
        assert isinstance(clock, VirtualClock)

        def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
            executed.append(request.correlation_id)
            clock.advance_ms(4000)
            return {"ErrorCode": 0, "Groups": []}

        with_handler(broker, LIST_GROUPS, handle)
        with Pipeline(broker.bootstrap_servers) as client:
            client.call("SaslHandshake", 1, {"Mechanism": "PLAIN"})
            login = client.call("SaslAuthenticate", 2, {"AuthBytes": b"\0alice\0secret"})
            assert login["SessionLifetimeMs"] == 10_000
            client.send_together(*[GROUPS] * 5)
            for _ in range(3):
                client.end()
            with pytest.raises(Closed):
                client.end()
    assert len(executed) == 3


def test_frames_of_a_client_that_left_are_not_executed(broker: VirtualBroker, client: Pipeline) -> None:
    """When a client has disconnected, the frames after the one in execution are not executed."""

    def leave(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
        client.reset()
        return {"ErrorCode": UNKNOWN_MEMBER_ID}

    def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
        wait_until(lambda: cast(InboundRequest, request.inbound).is_disconnected, 10, "the end of the connection")
        return {"ErrorCode": 0, "Groups": []}

    with_handler(broker, HEARTBEAT, leave)
    with_handler(broker, LIST_GROUPS, handle)
    client.send_together(heartbeat(), GROUPS, creation("never"))
    broker.wait_until_quiet()
    assert "never" not in broker.topics


def test_a_fault_meets_the_frame_that_it_names(broker: VirtualBroker, client: Pipeline) -> None:
    """Faults apply to each frame of a batch: the second fails, the fourth is delayed, and the order is kept."""
    second = broker.faults.add("Heartbeat", error="COORDINATOR_NOT_AVAILABLE", skip=1)
    with second, broker.faults.add("CreateTopics", delay_ms=1000):
        client.send_together(heartbeat(), heartbeat(), LOOK, creation("late"), heartbeat())
        assert [client.end()["ErrorCode"] for _ in range(3)] == [UNKNOWN_MEMBER_ID, 15, 0]
        broker.wait_until_quiet()
        assert not client.has_response
        assert "late" not in broker.topics
        broker.advance_ms(1000)
        assert client.end()["Topics"][0]["ErrorCode"] == 0
        assert client.end()["ErrorCode"] == UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("is_intercepted", [False, True])
def test_a_response_does_not_wait_for_a_slow_frame(
    broker: VirtualBroker, client: Pipeline, is_intercepted: bool
) -> None:
    """Earlier responses are sent before a frame whose API has no known duration, or that is intercepted, starts."""
    entered, left = threading.Event(), threading.Event()

    def wait() -> bool:
        entered.set()
        assert left.wait(10)
        return False

    def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
        wait()
        return {"ErrorCode": 0, "Groups": []}

    if is_intercepted:
        client.send_together(GROUPS, GROUPS, LOOK)
        for _ in range(3):
            client.end()
        broker.intercept(lambda request: wait() if request.api_key == LIST_GROUPS else False, [LIST_GROUPS])
    else:
        with_handler(broker, LIST_GROUPS, handle)
    try:
        client.send_together(LOOK, LOOK, GROUPS, LOOK)
        assert entered.wait(10)
        client.end()
        client.end()
        assert not client.has_response
    finally:
        left.set()
        broker.intercept(None)
    assert client.end()["ErrorCode"] == 0
    client.end()


def test_an_api_that_took_long_is_expected_to_take_long() -> None:
    """Earlier responses are sent before a frame whose API took long recently, even at the end of a batch."""
    with VirtualBroker({"kbroker.python.threads": "1"}) as broker:
        clock = broker.clock
        assert isinstance(clock, VirtualClock)
        entered, left = threading.Event(), threading.Event()
        times = iter(["short", "long", "short", "unknown"])

        def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
            time = next(times)
            if time == "long":
                clock.advance_ms(5)
            elif time == "unknown":
                entered.set()
                assert left.wait(10)
            return {"ErrorCode": 0, "Groups": []}

        with_handler(broker, LIST_GROUPS, handle)
        with Pipeline(broker.bootstrap_servers) as client:
            for frames in ((GROUPS, LOOK), (LOOK, GROUPS), (GROUPS, LOOK)):
                client.send_together(*frames)
                client.end()
                client.end()
            client.send_together(LOOK, GROUPS)
            assert entered.wait(10)
            try:
                wait_until(lambda: client.has_response, 5, "the first response")
            finally:
                left.set()
            client.end()
            client.end()


def test_large_responses_wait_for_their_client(broker: VirtualBroker, client: Pipeline) -> None:
    """A client that does not read its responses keeps only one large response in memory."""
    executed: list[int] = []
    groups = [{"GroupId": "x" * 30_000, "ProtocolType": "consumer"}] * 1000

    def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
        executed.append(request.correlation_id)
        return {"ErrorCode": 0, "Groups": groups}

    with_handler(broker, LIST_GROUPS, handle)
    client.send_together(*[GROUPS] * 4)
    wait_until(lambda: executed, 10, "the first frame")
    broker.wait_until_quiet()
    assert executed == [0]
    for _ in range(4):
        assert len(client.end()["Groups"]) == 1000
    assert executed == [0, 1, 2, 3]


def test_each_frame_is_charged_its_own_time(broker: VirtualBroker, client: Pipeline) -> None:
    """A frame is charged from the end of the previous frame (KIP-124)."""
    clock = broker.clock
    assert isinstance(clock, VirtualClock)
    broker.context.quotas.update(None, "client", "request_percentage", 1e6)
    name = MetricName.of("total", "test", {"client-id": "client"})
    broker.context.quotas.request.sensor("ANONYMOUS", "client").add(name, CumulativeSum())
    metric = broker.context.metrics.get(name)
    assert metric is not None

    def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
        pass_by(broker)  # the network thread's time is charged too, so it must not be writing when the clock moves
        clock.advance_ms(5)
        return {"ErrorCode": 0, "Groups": []}

    with_handler(broker, LIST_GROUPS, handle)
    client.send_together(*[GROUPS] * 4)
    for _ in range(4):
        client.end()
    broker.wait_until_quiet()
    assert float(metric.measure()) * 10 == pytest.approx(20)


def test_a_batch_leaves_its_handler_to_requests_that_wait() -> None:
    """With one handler, a request of another connection is executed between the frames of a long batch."""
    executed: list[str] = []
    entered, left = threading.Event(), threading.Event()
    with VirtualBroker({"kbroker.python.threads": "1"}) as broker:
        clock = broker.clock
        assert isinstance(clock, VirtualClock)

        def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
            executed.append(request.client_id)
            entered.set()
            assert left.wait(10)
            clock.advance_ms(3)
            return {"ErrorCode": 0, "Groups": []}

        with_handler(broker, LIST_GROUPS, handle)
        with Pipeline(broker.bootstrap_servers, "long") as one, Pipeline(broker.bootstrap_servers, "short") as other:
            one.send_together(*[GROUPS] * 8)
            assert entered.wait(10)
            other.send_together(GROUPS)
            wait_until(lambda: len(broker.parts.python_requests) == 1, 10, "the second request")
            left.set()
            other.end()
            for _ in range(8):
                one.end()
    assert executed[:2] == ["long", "short"]
    assert executed.count("long") == 8


def test_a_stop_leaves_the_frames_that_wait() -> None:
    """At a stop, the frame in execution receives its response, and later frames are closed without execution."""
    entered, left = threading.Event(), threading.Event()
    executed: list[InboundRequest] = []

    def look(request: InboundRequest) -> bool:
        if request.api_key == LIST_GROUPS:
            executed.append(request)
            entered.set()
            assert left.wait(10)
        return False

    broker = EmbeddedBroker()
    broker.start()
    with Pipeline(broker.bootstrap_servers) as client:
        broker.intercept(look, [LIST_GROUPS])
        queue = broker.parts.python_requests
        client.send_together(GROUPS, GROUPS, GROUPS)
        assert entered.wait(10)
        stopping = threading.Thread(target=broker.stop)
        stopping.start()
        wait_until(lambda: queue.closed, 10, "the stop of the Python handlers")
        left.set()
        assert client.end()["ErrorCode"] == 0
        with pytest.raises(Closed):
            client.end()
        stopping.join(20)
    assert len(executed) == 1


def test_a_thousand_mixed_frames_are_answered_in_order() -> None:
    """Each connection that sends a thousand mixed frames receives all responses in order."""
    kinds: list[Frame] = [
        LOOK,
        heartbeat(),
        GROUPS,
        ("ApiVersions", 2, {}),
        ("Produce", 7, produce_body("t")),
        ("Fetch", 11, fetch_body("t", 1 << 40)),
        ("FindCoordinator", 2, {"Key": "g", "KeyType": 0}),
        ("DescribeConfigs", 1, {"Resources": [{"ResourceType": 2, "ResourceName": "t"}]}),
        ("CreateTopics", 5, {"Topics": [{"Name": "t", "NumPartitions": 1, "ReplicationFactor": 1}], "timeoutMs": 1}),
    ]
    places = [{"Name": "t", "Partitions": [{"PartitionIndex": 0, "CommittedOffset": 0}]}]
    with EmbeddedBroker() as broker:
        broker.create_topic("t")
        broker.context.groups.runtime.prepare()

        def run(number: int) -> None:
            rng = random.Random(number)
            group = f"g-{number}"
            frames: list[Frame] = []
            for at in range(1000):
                if rng.random() < 0.3:
                    places_at = [{**places[0], "Partitions": [{"PartitionIndex": 0, "CommittedOffset": at}]}]
                    frames.append(("OffsetCommit", 7, {"GroupId": group, "Topics": places_at}))
                else:
                    frames.append(rng.choice(kinds))
            frames.append(("OffsetFetch", 5, {"GroupId": group, "Topics": [{"Name": "t", "PartitionIndexes": [0]}]}))
            committed = max(at for at, (api, _, _) in enumerate(frames[:-1]) if api == "OffsetCommit")
            offsets = []
            with Pipeline(broker.bootstrap_servers) as client:
                client.send_together(*frames)
                for api, _, _ in frames[:-1]:
                    found = client.end()
                    if api == "Produce":
                        offsets.append(row_of(found)["BaseOffset"])
                    elif api == "OffsetCommit":
                        assert found["Topics"][0]["Partitions"][0]["ErrorCode"] == 0
                assert client.end()["Topics"][0]["Partitions"][0]["CommittedOffset"] == committed
            assert offsets == sorted(set(offsets))
            done.append(len(offsets))

        done: list[int] = []
        threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(done) == 4
        assert len(broker.records("t")) == sum(done)
