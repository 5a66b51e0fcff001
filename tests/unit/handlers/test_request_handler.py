"""Mapping of exceptions to error codes, and invalid requests that close connections."""

import logging
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import pytest

from kbroker.common.errors import Errors, KafkaError
from kbroker.handlers._batch_receiver import BatchReceiver
from kbroker.handlers.api_table import Handler, KafkaApis
from kbroker.handlers.request_handler import RequestHandlerPool
from kbroker.metadata.topic_rules import NewTopic
from kbroker.metadata.topics import ZERO_ID
from kbroker.network.connections._refused_requests import RefusedRequests
from kbroker.protocol import codec
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.testing.waiting import wait_until
from tests.support.errors import raising
from tests.support.server import make_bench


@dataclass
class FakeRequest:
    """Request that records its responses."""

    api_key: int
    api_version: int
    body: memoryview
    correlation_id: int = 7
    client_id: str = "me"
    listener: str = "PLAINTEXT"
    principal: str = "User:ANONYMOUS"
    remote_host: str = "127.0.0.1"
    is_token_authenticated: bool = False
    ended: list[bytes | None] = field(default_factory=list)

    def respond(self, response: bytes) -> None:
        self.ended.append(response)

    def mark_errors(self, counts: dict[int, int]) -> None:
        self.errors = counts

    def handler_done(self) -> None:
        pass

    def refuse(self, noted: RefusedRequests) -> None:
        self.ended.append(None)

    def close(self) -> None:
        self.ended.append(None)

    @property
    def payload(self) -> memoryview:
        header = codec.encode_request_header(self.api_key, self.api_version, self.correlation_id, self.client_id)
        return memoryview(header + bytes(self.body))


class NoQuotas:
    """Quotas without a limit, for requests that are not an InboundRequest."""

    charges_time = False

    def settle(self, request: FakeRequest, serves_mutations: bool) -> None:
        pass


def request(key: int, version: int, body: Body | None = None, raw: bytes | None = None) -> FakeRequest:
    data = codec.encode_request(key, version, body or {}) if raw is None else raw
    return FakeRequest(key, version, memoryview(data))


class NoRequests:
    """Receiver without requests."""

    closed = 0

    def receive(self, timeout_s: float) -> None:
        """Return None."""

    def close(self) -> None:
        self.closed += 1


no_requests = cast(Callable[[], BatchReceiver], NoRequests)


def pool(
    apis: KafkaApis, new_receiver: Callable[[], BatchReceiver] = no_requests, count: int = 0
) -> RequestHandlerPool:
    ctx = make_bench().ctx
    ctx.quotas = NoQuotas()  # type: ignore[assignment]
    return RequestHandlerPool(ctx, apis, new_receiver, count, RefusedRequests())


def serve(one: FakeRequest, apis: KafkaApis | None = None) -> bytes | None:
    pool(apis or KafkaApis()).serve(one)  # type: ignore[arg-type]
    (ended,) = one.ended
    return ended


def test_a_response_has_its_header() -> None:
    """A response has the correlation id, a tagged section if the version is flexible, and the body."""
    response = serve(request(3, 12, {"Topics": []}))
    assert struct.unpack_from(">ib", response) == (7, 0)  # type: ignore[arg-type]
    assert codec.decode_response(3, 12, response, 5)["ControllerId"] == 1  # type: ignore[arg-type]
    assert codec.decode_response(3, 1, serve(request(3, 1, {"Topics": []})), 4)["ControllerId"] == 1  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("key", "version", "raw"),
    [
        (999, 0, b""),
        (3, 14, b""),
        (0, 3, b""),
        (3, 1, b""),
        (3, 1, struct.pack(">i", 2**31 - 1)),
        (3, 1, struct.pack(">ih", 1, 32767) + b"abc"),
        (19, 7, codec.encode_request(19, 7, {"Topics": []})[:-1]),
    ],
)
def test_a_request_without_a_response_closes(key: int, version: int, raw: bytes) -> None:
    """Unknown keys and versions, and truncated or malformed bodies, close the connection."""
    assert serve(request(key, version, raw=raw)) is None


def with_handler(key: int, handle: Handler) -> KafkaApis:
    apis = KafkaApis()
    apis.entries[key] = apis.entries[key]._replace(handle=handle)
    return apis


def test_a_kafka_error_is_its_code() -> None:
    """A KafkaError of a handler becomes the error code of each part of the response."""
    apis = with_handler(3, raising(KafkaError(Errors.KAFKA_STORAGE_ERROR)))
    response = serve(request(3, 12, {"Topics": [{"Name": "a"}, {"Name": "b"}]}), apis)
    assert [row["ErrorCode"] for row in codec.decode_response(3, 12, response, 5)["Topics"]] == [56, 56]  # type: ignore[arg-type]


def test_an_unknown_outcome_has_no_response() -> None:
    """The connection is closed: a response would deny or confirm a change that only the next start can find."""
    bench = make_bench()
    bench.storage.is_broken = True
    bench.ctx.quotas = NoQuotas()  # type: ignore[assignment]
    handlers = RequestHandlerPool(bench.ctx, KafkaApis(), no_requests, 0, RefusedRequests())
    before = bench.ctx.features.finalized
    for _ in range(2):
        one = request(57, 1, {"FeatureUpdates": [{"Feature": "group.version", "MaxVersionLevel": 0, "UpgradeType": 2}]})
        handlers.serve(one)  # type: ignore[arg-type]
        assert one.ended == [None]
    assert bench.ctx.features.finalized == before


@pytest.mark.parametrize("key", [key for key, entry in KafkaApis().entries.items() if entry.handle is not None])
def test_our_bug_is_unknown_server_error(key: int, caplog: pytest.LogCaptureFixture) -> None:
    """The response of each API and version has its format, and the log has the traceback."""
    entry = KafkaApis().entries[key]
    for version in range(entry.min_served_version, entry.max_version + 1):
        with caplog.at_level(logging.ERROR):
            response = serve(request(key, version), with_handler(key, raising(ZeroDivisionError("a bug"))))
        assert response is not None
        codec.decode_response(key, version, response, 5 if version >= entry.first_flexible and key != 18 else 4)
    assert "a bug" in caplog.text


def test_a_response_the_wire_cannot_carry_closes(caplog: pytest.LogCaptureFixture) -> None:
    """A body that cannot be encoded, of a handler and of its error response, closes the connection."""
    apis = KafkaApis()
    apis.entries[60] = apis.entries[60]._replace(handle=lambda *_: {"Nonsense": 1}, failure=lambda *_: {"Nonsense": 1})
    assert serve(request(60, 0), apis) is None


def test_threads_serve_until_stopped() -> None:
    """Threads take requests from the queue; a stop waits for the threads, each of which closes its receiver."""
    done = threading.Event()
    waiting = [request(60, 0) for _ in range(3)]
    ones = list(waiting)
    receivers: list[NoRequests] = []

    class Waiting(NoRequests):
        def receive(self, timeout_s: float) -> FakeRequest | None:  # type: ignore[override]
            try:
                return waiting.pop()
            except IndexError:
                done.set()
                return None

    def new_receiver() -> Waiting:
        receivers.append(Waiting())
        return receivers[-1]  # type: ignore[return-value]

    handlers = pool(KafkaApis(), new_receiver, 2)  # type: ignore[arg-type]
    handlers.start()
    assert done.wait(10)
    assert handlers.stop(10)
    assert [len(one.ended) for one in ones] == [1, 1, 1]
    assert [one.closed for one in receivers] == [1, 1]


def test_a_request_that_lacks_memory_is_followed_by_another(caplog: pytest.LogCaptureFixture) -> None:
    """The thread continues after a failure to take a request, or to pass it to the interceptor."""
    first, second = request(60, 0), request(60, 0)
    steps: list[Callable[[], FakeRequest | None]] = [raising(MemoryError()), lambda: first, lambda: second]
    over = threading.Event()

    class Failing(NoRequests):
        def receive(self, timeout_s: float) -> FakeRequest | None:  # type: ignore[override]
            if steps:
                return steps.pop(0)()
            over.set()
            return None

    handlers = pool(KafkaApis(), cast(Callable[[], BatchReceiver], Failing), 1)
    handlers._intercept = lambda one: 1 / 0 if cast(object, one) is first else False  # type: ignore[assignment,return-value]
    handlers.start()
    assert over.wait(10)
    assert handlers.stop(10)
    assert [len(one.ended) for one in (first, second)] == [0, 1]
    assert caplog.text.count("a request cannot be served") == 2


# ---------------------------------------------------------------- requests that take long


@dataclass
class LongRequests:
    """Handlers of DescribeCluster requests, each of which ends when ``go`` is set."""

    begun: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    go: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.pool = pool(with_handler(60, lambda *_: self.work))

    def work(self, ctx: ApiContext, body: Body, facts: RequestContext) -> Body:
        self.begun.release()
        assert self.go.wait(10)
        raise KafkaError(Errors.POLICY_VIOLATION)

    def serve(self, key: int, version: int) -> FakeRequest:
        one = request(key, version, {"Topics": []} if key == 3 else None)
        self.pool.serve(one)  # type: ignore[arg-type]
        return one


def test_long_requests_hold_up_no_other() -> None:
    """One thread serves long requests in turn, each to its response, while handlers serve other requests."""
    long = LongRequests()
    ones = [long.serve(60, 0) for _ in range(2)]
    assert long.begun.acquire(timeout=10)
    assert len(long.serve(3, 12).ended) == 1
    assert [one.ended for one in ones] == [[], []]
    long.go.set()
    wait_until(lambda: len(ones[1].ended) == 1)
    (response,) = ones[0].ended
    assert codec.decode_response(60, 0, response, 5)["ErrorCode"] == Errors.POLICY_VIOLATION  # type: ignore[arg-type]
    assert long.pool.stop(10)


def test_a_stop_refuses_long_requests_that_wait() -> None:
    """The current request gets its response; the connections of waiting and of later requests are closed."""
    long = LongRequests()
    first, second = (long.serve(60, 0) for _ in range(2))
    assert long.begun.acquire(timeout=10)
    assert not long.pool.stop(0)
    long.go.set()
    wait_until(lambda: len(second.ended) == 1)
    assert first.ended[0] is not None
    assert second.ended == long.serve(60, 0).ended == [None]


def test_a_bug_does_not_end_the_thread_of_long_requests(caplog: pytest.LogCaptureFixture) -> None:
    long = LongRequests()
    long.go.set()
    entries = long.pool._apis.entries
    entries[60] = entries[60]._replace(failure=lambda *_: 1 / 0)  # type: ignore[arg-type]
    ones = [long.serve(60, 0) for _ in range(2)]
    wait_until(lambda: all(one.ended == [None] for one in ones))
    assert "cannot serve DescribeCluster" in caplog.text
    assert long.pool.stop(10)


def test_a_long_request_without_a_thread_is_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The connection of a request without a thread is closed, with a line in the log; later requests are served."""
    long = LongRequests()
    long.go.set()
    with monkeypatch.context() as without:
        without.setattr(threading.Thread, "start", raising(RuntimeError("can't start new thread")))
        assert long.serve(60, 0).ended == [None]
    assert "can't start new thread" in caplog.text
    later = long.serve(60, 0)
    wait_until(lambda: len(later.ended) == 1)
    assert later.ended != [None]
    assert long.pool.stop(10)


def test_changes_of_many_partitions_take_long() -> None:
    """The thread of long requests creates and deletes more than 256 partitions; handlers do mere checks themselves."""
    bench = make_bench()
    entries = KafkaApis().entries
    for name, count in (("few", 256), ("many", 257)):
        bench.ctx.topics.create(NewTopic(name, count))
    views = [bench.ctx.topics.get(name) for name in ("few", "many")]

    def takes_long(key: int, body: Body) -> bool:
        handle, version = entries[key].handle, entries[key].max_version
        assert handle is not None
        decoded = codec.decode_request(key, version, codec.encode_request(key, version, body))
        return callable(handle(bench.ctx, decoded, RequestContext(key, version)))

    for checks_only in (False, True):
        for count, assignments in ((256, []), (257, []), (-1, [{"PartitionIndex": 0}] * 257)):
            topic = {"Name": "t", "NumPartitions": count, "Assignments": assignments}
            assert takes_long(19, {"Topics": [topic], "validateOnly": checks_only}) is (
                count != 256 and not checks_only
            )
            grown = {"Topics": [{"Name": "t", "Count": count}], "ValidateOnly": checks_only}
            assert takes_long(37, grown) is (count == 257 and not checks_only)
    for view, is_long in zip(views, (False, True), strict=True):
        assert view is not None
        assert takes_long(20, {"Topics": [{"Name": view.name, "TopicId": ZERO_ID}]}) is is_long
        assert takes_long(20, {"Topics": [{"Name": None, "TopicId": view.topic_id}]}) is is_long
    assert not takes_long(20, {"Topics": [{"Name": "absent", "TopicId": ZERO_ID}]})


# ---------------------------------------------------------------- responses that come later


def deferred(one: FakeRequest, then: Callable[[RequestContext], None] | None = None) -> RequestContext:
    """Serve a request by a handler that responds later, and return the request context of its call."""
    kept = []

    def handle(ctx: ApiContext, body: Body, facts: RequestContext) -> None:
        kept.append(facts)
        if then is not None:
            then(facts)

    pool(with_handler(60, handle)).serve(one)  # type: ignore[arg-type]
    return kept[0]


def test_a_handler_may_respond_later() -> None:
    """A response is sent when another thread completes the request, and not before."""
    one = request(60, 0)
    facts = deferred(one)
    assert one.ended == []
    assert (facts.client_host, facts.client_id) == ("127.0.0.1", "me")
    thread = threading.Thread(target=facts.complete, args=({"ErrorCode": 5},))
    thread.start()
    thread.join()
    (response,) = one.ended
    assert codec.decode_response(60, 0, response, 5)["ErrorCode"] == 5  # type: ignore[arg-type]


def test_a_response_is_sent_once() -> None:
    """A second response of a request raises RuntimeError."""
    one = request(60, 0)
    facts = deferred(one, lambda facts: facts.complete({"ErrorCode": 5}))
    with pytest.raises(RuntimeError, match="has its response already"):
        facts.complete({"ErrorCode": 6})
    assert len(one.ended) == 1


def test_a_failure_after_the_response_sends_nothing_more(caplog: pytest.LogCaptureFixture) -> None:
    """The failure is logged with its traceback."""

    def complete_and_fail(facts: RequestContext) -> None:
        facts.complete({"ErrorCode": 5})
        raise ZeroDivisionError

    one = request(60, 0)
    deferred(one, complete_and_fail)
    assert len(one.ended) == 1
    assert one.ended[0] is not None
    assert "ZeroDivisionError" in caplog.text


def test_a_late_response_the_wire_cannot_carry_closes(caplog: pytest.LogCaptureFixture) -> None:
    """The connection is closed, so that the client does not wait."""
    one = request(60, 0)
    deferred(one).complete({"ErrorCode": "no number"})
    assert one.ended == [None]
    assert "cannot encode the response of" in caplog.text


def test_more_names_than_a_request_may_hold_close() -> None:
    """A request with too many names is refused: two million names of one byte would take 415 MB of memory."""
    names = b"\x02a\0" * 100_001
    assert serve(request(3, 9, raw=b"\xa2\x8d\x06" + names + b"\0\0\0\0")) is None


def test_errors_of_partitions_that_join_a_transaction_are_counted() -> None:
    """The PartitionErrorCode fields of AddPartitionsToTxn are counted as error codes."""
    rows = [{"PartitionIndex": 0, "PartitionErrorCode": 0}, {"PartitionIndex": 1, "PartitionErrorCode": 3}]
    body = {"ErrorCode": 0, "ResultsByTransaction": [{"TopicResults": [{"ResultsByPartition": rows}]}]}
    assert codec.error_counts(body) == {0: 2, 3: 1}


def test_a_receiver_of_no_broker() -> None:
    """A receiver cannot be constructed, and one without its parts cannot receive."""
    with pytest.raises(TypeError, match=r"made by NativeApis\.receiver"):
        BatchReceiver()
    bare = BatchReceiver.__new__(BatchReceiver)
    with pytest.raises(TypeError, match=r"expected .* made by NativeApis\.receiver, got one without a broker"):
        bare.receive(0)
    bare.close()
