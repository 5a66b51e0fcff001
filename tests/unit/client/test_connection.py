"""Addresses, the failures of one connection, and the negotiated versions."""

import contextlib
import errno
import os
import socket
import ssl
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn

import pytest

from kbroker.client.cluster import Cluster, to_error
from kbroker.client.connection import (
    BrokerConnectionError,
    BrokerTimeoutError,
    Connection,
    FrameMemory,
    format_address,
    parse_bootstrap,
)
from kbroker.common.errors import Errors, KafkaError
from tests.support.fake_broker import FakeBroker
from tests.support.fake_log import FakeTime

METADATA, API_VERSIONS, BROKER_REGISTRATION = 3, 18, 62


def test_bootstrap_lists() -> None:
    """A bootstrap list may name several hosts, IPv6 in brackets, and leave the port out."""
    assert parse_bootstrap("a:1, b,[::1]:2,[::2]") == [("a", 1), ("b", 9092), ("::1", 2), ("::2", 9092)]


@pytest.mark.parametrize(
    "text", ["", ",", "a:", "a:b", "a:0", "a:65536", ":1", "a:1:2", "[::1", "[::1]x", "a:-1", "a:٣"]
)
def test_malformed_bootstrap_list_is_refused(text: str) -> None:
    """A malformed bootstrap list is a ValueError and starts no connection."""
    with pytest.raises(ValueError):
        parse_bootstrap(text)


def test_a_url_instead_of_an_address() -> None:
    """The protocol of a URL is named as the mistake."""
    with pytest.raises(ValueError, match="got 'http://h:9092'; leave the protocol out"):
        parse_bootstrap("http://h:9092")


def test_ipv6_addresses_are_shown_in_brackets() -> None:
    """An address in an error can be pasted into an option."""
    assert (format_address(("::1", 9092)), format_address(("h", 1))) == ("[::1]:9092", "h:1")


def test_connection_refused_is_one_line_with_the_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
    with pytest.raises(BrokerConnectionError) as caught:
        Connection(address)
    assert f"{format_address(address)}: connection refused" == str(caught.value)


def test_tls_names_the_setting() -> None:
    """OpenSSL's code and the line of Python's source are left out."""

    def refuse(address: object, timeout_s: float) -> NoReturn:
        text = "[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED] tlsv13 alert certificate required (_ssl.c:2580)"
        raise ssl.SSLError(ssl.SSL_ERROR_SSL, text)

    with pytest.raises(BrokerConnectionError) as failure:
        Connection(("fake", 1), open_stream=refuse)
    assert str(failure.value) == "fake:1: tlsv13 alert certificate required: set ssl.keystore.location"


def test_impossible_host_name_is_one_line() -> None:
    """An invalid host name is a failed connection too, not a UnicodeError."""
    with pytest.raises(BrokerConnectionError, match=r"a\.\.b:1: not a host name"):
        Connection(("a..b", 1))


@contextlib.contextmanager
def raw_response(data: bytes) -> Iterator[Connection]:
    """Yield a connection whose peer sends fixed bytes in response to any request."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(data)
        theirs.shutdown(socket.SHUT_WR)
        yield Connection(("fake", 1), open_stream=lambda address, timeout_s: ours, max_frame_bytes=1000)


def test_a_likely_response_overwrites_the_last() -> None:
    """Memory is reused while responses fit; a larger response gets None."""
    memory = FrameMemory(100)
    first = memory.take(60)
    assert first is not None
    assert first.nbytes == 60
    first[:] = bytes(60)
    second = memory.take(100)
    assert second is not None
    assert second.nbytes == 100
    second[0] = 7
    assert first[0] == 7
    assert memory.take(101) is None


def test_little_memory_is_kept_for_little_responses() -> None:
    """A response much smaller than the usual size takes only its own size."""
    memory = FrameMemory(1 << 20)
    taken = memory.take(10)
    assert taken is not None
    assert memoryview(taken.obj).nbytes == 10


@pytest.mark.parametrize("memory", [None, FrameMemory(1000), FrameMemory(1 << 20)])
def test_large_responses_arrive_whole(memory: FrameMemory | None) -> None:
    """A response of many reads is assembled, in its own memory or in kept memory."""
    ours, theirs = socket.socketpair()
    body = bytes(range(256)) * 800
    with ours, theirs, ThreadPoolExecutor(1) as peer:
        connection = Connection(("fake", 1), open_stream=lambda address, timeout_s: ours)
        for correlation_id in (1, 2):
            sent = peer.submit(theirs.sendall, struct.pack(">ii", 4 + len(body), correlation_id) + body)
            assert connection.send_request(METADATA, 9, {}, timeout_s=5) == correlation_id
            frame = connection.receive_response(correlation_id, timeout_s=5, memory=memory)
            assert bytes(frame[4:]) == body
            sent.result()


def test_the_time_out_of_the_socket_is_not_set_for_each_read() -> None:
    """The socket's time-out, a system call, is set only if it changes enough; each read checks the deadline."""
    times, waits = [0.0], []

    class Watched(socket.socket):
        def settimeout(self, value: float | None) -> None:
            waits.append(value)
            super().settimeout(value)

    pair = socket.socketpair()
    ours, theirs = Watched(fileno=pair[0].detach()), pair[1]
    with ours, theirs:
        connection = Connection(("fake", 1), open_stream=lambda address, timeout_s: ours, clock=lambda: times[0])
        for correlation_id, now_s in ((1, 100.0), (2, 100.001), (3, 100.5)):
            times[0] = now_s
            theirs.sendall(struct.pack(">iiB", 5, correlation_id, 0))
            connection.send_request(METADATA, 9, {}, timeout_s=30)
            connection.receive_response(correlation_id, timeout_s=130 - now_s)
    assert waits == [30.0, 29.5]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the broker closed the connection"),
        (b"\0\0", "the broker closed the connection"),
        (struct.pack(">i", 100) + b"x", "the broker closed the connection"),
        (struct.pack(">i", -1), "expected a response of 4 to 1000 bytes, got -1"),
        (struct.pack(">i", 3), "expected a response of 4 to 1000 bytes, got 3"),
        (struct.pack(">i", 1001), "expected a response of 4 to 1000 bytes, got 1001"),
        (b"HTTP/1.1 400 Bad Request", "is this a Kafka port?"),
        (b"\x15\3\3\0\2\2\x46", "expected a listener without TLS, got one with TLS: change security.protocol"),
        (struct.pack(">ii", 4, 99), "correlation id mismatch: expected 1, got 99"),
        (struct.pack(">ii", 4, 1), "cannot decode the response to Metadata version 9"),
        (struct.pack(">iiB", 5, 1, 0xFF), "cannot decode the response to Metadata version 9"),
    ],
)
def test_bad_responses_close_the_connection(data: bytes, message: str) -> None:
    """Invalid bytes instead of a response raise one error, and the connection is not used again."""
    with raw_response(data) as connection:
        with pytest.raises(BrokerConnectionError) as caught:
            connection.request(METADATA, 9, {})
        assert message in str(caught.value)
        assert connection.closed
        with pytest.raises(BrokerConnectionError, match="connection is closed"):
            connection.request(METADATA, 9, {})


@pytest.mark.parametrize(("left_s", "limits"), [(1.0, [1.0, 0.5]), (30.0, [2.0, 1.5]), (0.5, [0.5])])
def test_search_for_tls_ends_with_the_request(
    left_s: float, limits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a close the client tries TLS on another connection, within the remaining time and 2 s in total."""
    times = [0.0]
    found: list[float] = []

    class Reset(socket.socket):
        def getpeername(self) -> NoReturn:
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))

    class Watched(socket.socket):
        def settimeout(self, value: float | None) -> None:
            found.append(value or 0.0)
            super().settimeout(value)

    def connect(address: object, timeout_s: float) -> socket.socket:
        found.append(timeout_s)
        times[0] += 0.5
        ours, theirs = socket.socketpair()
        theirs.close()
        return Watched(fileno=ours.detach())

    with socket.create_server(("127.0.0.1", 0)) as server:
        stream = Reset(fileno=socket.create_connection(server.getsockname()).detach())
        connection = Connection(("fake", 1), open_stream=lambda address, timeout_s: stream, clock=lambda: times[0])
        monkeypatch.setattr(socket, "create_connection", connect)
        with server.accept()[0] as theirs:
            theirs.shutdown(socket.SHUT_WR)
            with pytest.raises(BrokerConnectionError, match="the broker closed the connection"):
                connection.request(METADATA, 9, {}, timeout_s=left_s)
    assert found == limits


def test_silent_broker_times_out() -> None:
    """A broker that never responds causes a time-out error with the time-out's length, by the injected clock."""
    ours, theirs = socket.socketpair()
    times = iter([0.0, 0.0, 31.0])
    with ours, theirs:
        connection = Connection(("fake", 1), open_stream=lambda address, timeout_s: ours, clock=lambda: next(times))
        with pytest.raises(BrokerTimeoutError, match="fake:1: no response within 30 s"):
            connection.request(METADATA, 9, {}, timeout_s=30)
        assert connection.closed


def test_an_interrupted_tls_connection_is_closed() -> None:
    """A thread that reads next gets the error of a connection, not one of a socket without TLS."""
    ours, theirs = socket.socketpair()
    context = ssl.create_default_context()
    with theirs, context.wrap_socket(ours, server_hostname="fake", do_handshake_on_connect=False) as stream:
        connection = Connection(("fake", 1), open_stream=lambda address, timeout_s: stream)
        connection.interrupt()
        with pytest.raises(BrokerConnectionError):
            connection.receive_response(1, timeout_s=5)
        assert connection.closed


def test_versions_are_the_highest_both_know(broker: FakeBroker, fake_time: FakeTime) -> None:
    """Each request is sent in the lower of the two maximum versions."""
    broker.ranges[METADATA] = (0, 7)
    with Cluster(broker.bootstrap) as cluster:
        cluster.fetch_metadata(None)
    assert [version for version, _ in broker.asked(METADATA)] == [7]


@pytest.mark.parametrize(("offered", "asked"), [((0, 5), [4]), ((0, 3), [4, 3]), ((0, 0), [4, 0])])
def test_api_versions_falls_back(broker: FakeBroker, offered: tuple[int, int], asked: list[int]) -> None:
    """After error 35 in the format of version 0 the client retries with the broker's version."""
    broker.ranges[API_VERSIONS] = offered
    Cluster(broker.bootstrap).close()
    assert asked == [version for version, _ in broker.asked(API_VERSIONS)]


def test_api_versions_refused_for_good(broker: FakeBroker) -> None:
    """A broker that refuses every version of ApiVersions is an error after a few requests."""
    broker.ranges[API_VERSIONS] = (5, 5)
    broker.handlers[API_VERSIONS] = lambda version, body: {"ErrorCode": 35}
    with pytest.raises(KafkaError, match="UNSUPPORTED_VERSION"):
        Cluster(broker.bootstrap)
    assert [version for version, _ in broker.asked(API_VERSIONS)][:2] == [4, 3]
    assert len(broker.asked(API_VERSIONS)) <= 5


@pytest.mark.parametrize("theirs", [(99, 100), None])
def test_no_common_version_is_named(broker: FakeBroker, cluster: Cluster, theirs: tuple[int, int] | None) -> None:
    """An API that the broker lacks, or shares no version of, is UNSUPPORTED_VERSION with the API's name."""
    del broker.ranges[METADATA], broker.ranges[BROKER_REGISTRATION]
    if theirs is not None:
        broker.ranges[METADATA] = theirs
    with Cluster(broker.bootstrap) as fresh, pytest.raises(KafkaError, match="of Metadata, this client") as caught:
        fresh.fetch_metadata(None)
    assert Errors.UNSUPPORTED_VERSION is caught.value.error


def test_the_listener_of_a_controller_is_named(broker: FakeBroker) -> None:
    """The error for a bootstrap server that serves BrokerRegistration and not Metadata calls it a controller."""
    broker.ranges = {API_VERSIONS: (0, 4), BROKER_REGISTRATION: (0, 4)}
    with Cluster(broker.bootstrap) as fresh, pytest.raises(KafkaError) as caught:
        fresh.fetch_metadata(None)
    assert f"{broker.bootstrap} is the listener of a controller, without Metadata" in str(caught.value)


def test_a_broker_that_stops_is_not_taken_for_a_listener_with_tls(broker: FakeBroker) -> None:
    """A connection that is closed at the first request is that of a TLS listener only if a TLS handshake succeeds."""
    broker.handlers[API_VERSIONS] = lambda version, body: broker.listener.shutdown(socket.SHUT_RDWR)
    with pytest.raises(BrokerConnectionError) as caught:
        Cluster(broker.bootstrap)
    assert caught.value.message == "the broker closed the connection"


def test_unknown_error_code_counts_as_unknown_server_error() -> None:
    """A code from a newer broker is treated as -1."""
    assert Errors.UNKNOWN_SERVER_ERROR is to_error(9999)
