"""Channel to the active controller: retries, a new controller, timeouts, refusals and close."""

import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.client.connection import Address, BrokerConnectionError, Connection
from kbroker.common.errors import Errors, KafkaError
from kbroker.member.controller_channel import ControllerChannel, Outcome
from kbroker.member.controller_connection import ControllerConnections
from tests.support.errors import raising

OLD, NEW = ("old", 1), ("new", 2)
HEARTBEAT = 63
Serve = Callable[[Address, dict[str, Any]], dict[str, Any]]


class FakeConnection:
    """Connection whose responses the test determines."""

    def __init__(self, address: Address, serve: Serve) -> None:
        self.address = address
        self.versions = {HEARTBEAT: (0, 1)}
        self.is_closed = False
        self._serve = serve

    def request(self, api_key: int, api_version: int, body: dict[str, Any], *, timeout_s: float) -> dict[str, Any]:
        assert (api_key, api_version) == (HEARTBEAT, 1)
        return self._serve(self.address, body)

    def is_stale(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    interrupt = close


class Network:
    """Controllers, and a channel to the active one."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.leader: Address | None = OLD
        self.connected: list[Address] = []
        self.served: list[tuple[Address, int]] = []
        self.serve: Serve = lambda address, body: {"ErrorCode": 0}
        self.login: KafkaError | None = None
        self.ended: list[Outcome] = []
        self.changed = threading.Condition()
        self.channel = ControllerChannel(
            "test", "9", self.clock, lambda: self.leader, cast("ControllerConnections", self), retry_timeout_ms=1000
        )

    def connect(self, address: Address, client_id: str, timeout_s: float) -> Connection:
        if self.login is not None:
            raise self.login
        self.connected.append(address)
        return cast("Connection", FakeConnection(address, self._serve))

    def renew(self, connection: Connection) -> None:
        """Do nothing."""

    def _serve(self, address: Address, body: dict[str, Any]) -> dict[str, Any]:
        self.served.append((address, body["BrokerId"]))
        return self.serve(address, body)

    def send(self, number: int) -> None:
        self.channel.send(HEARTBEAT, {"BrokerId": number}, self._end)

    def _end(self, outcome: Outcome) -> None:
        with self.changed:
            self.ended.append(outcome)
            self.changed.notify_all()

    def await_ends(self, count: int) -> list[Outcome]:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.ended) >= count, 60)
        return self.ended


@pytest.fixture
def network() -> Iterator[Network]:
    found = Network()
    found.channel.start()
    yield found
    assert found.channel.close()


def test_one_connection_in_order(network: Network) -> None:
    for number in range(3):
        network.send(number)
    assert [one.error for one in network.await_ends(3)] == [None] * 3
    assert (network.connected, [number for _, number in network.served]) == ([OLD], [0, 1, 2])
    assert network.channel.versions == {HEARTBEAT: (0, 1)}


def test_a_new_controller(network: Network) -> None:
    """The next request is sent to the new controller on a new connection."""
    network.send(1)
    network.await_ends(1)
    network.leader = NEW
    network.send(2)
    network.await_ends(2)
    assert network.connected == [OLD, NEW]


def test_not_controller(network: Network) -> None:
    """A request is repeated before later requests until the new controller is known."""

    def serve(address: Address, body: dict[str, Any]) -> dict[str, Any]:
        if address == OLD and len(network.served) == 3:
            network.leader = NEW
        return {"ErrorCode": int(Errors.NOT_CONTROLLER if address == OLD else Errors.NONE)}

    network.serve = serve
    network.send(1)
    network.send(2)
    network.await_ends(2)
    assert network.served == [(OLD, 1), (OLD, 1), (OLD, 1), (NEW, 1), (NEW, 2)]


def test_a_request_that_breaks_every_connection(network: Network) -> None:
    """The request ends with REQUEST_TIMED_OUT after the responses of the other requests."""

    def serve(address: Address, body: dict[str, Any]) -> dict[str, Any]:
        if body["BrokerId"] == 1:
            raise BrokerConnectionError(address, "reset")
        return {"ErrorCode": 0}

    network.serve = serve
    network.leader = None
    network.send(1)
    network.send(2)
    network.leader = OLD
    (outcome,) = network.await_ends(1)
    assert outcome.error is None
    network.clock.advance_ms(1000)
    error = network.await_ends(2)[1].error
    assert error is not None
    assert error.error is Errors.REQUEST_TIMED_OUT


def test_no_controller_in_time(network: Network) -> None:
    network.leader = None
    network.send(1)
    network.clock.advance_ms(1000)
    (outcome,) = network.await_ends(1)
    assert outcome.error is not None
    assert outcome.error.error is Errors.REQUEST_TIMED_OUT
    assert outcome.queue_ms == 1000
    assert not network.served


def test_times_of_a_request_that_breaks_connections(network: Network) -> None:
    """A request is repeated on new connections, and the time of attempts without a response counts as queue time."""

    def serve(address: Address, body: dict[str, Any]) -> dict[str, Any]:
        network.clock.advance_ms(100 * len(network.served))
        if len(network.served) < 3:
            raise BrokerConnectionError(address, "reset")
        return {"ErrorCode": 0}

    network.serve = serve
    network.send(1)
    (outcome,) = network.await_ends(1)
    assert (outcome.queue_ms, outcome.remote_ms) == (300, 300)
    assert network.connected == [OLD] * 3


def test_a_refused_login_ends_the_request(network: Network) -> None:
    """A failed authentication is not retried."""
    network.login = KafkaError(Errors.SASL_AUTHENTICATION_FAILED, "wrong password")
    network.send(1)
    (outcome,) = network.await_ends(1)
    assert outcome.error is network.login


def test_a_version_that_the_controller_lacks(network: Network) -> None:
    network.channel.send(62, {}, network._end)
    (outcome,) = network.await_ends(1)
    assert outcome.error is not None
    assert outcome.error.error is Errors.UNSUPPORTED_VERSION


def test_failures_around_a_request(network: Network, caplog: pytest.LogCaptureFixture) -> None:
    """A request during which the channel itself fails has an error, and a failing completion ends no other request."""
    fail = raising(ZeroDivisionError("a bug"))
    network.channel.on_versions = fail
    network.send(1)
    (outcome,) = network.await_ends(1)
    assert outcome.error is not None
    assert outcome.error.error is Errors.UNKNOWN_SERVER_ERROR
    network.channel.send(HEARTBEAT, {"BrokerId": 2}, fail)
    network.send(3)
    assert network.await_ends(2)[1].error is None
    network.leader = None
    network.channel.send(HEARTBEAT, {"BrokerId": 4}, fail)
    network.send(5)
    assert network.channel.close()
    assert len(network.await_ends(3)) == 3
    assert [record.message for record in caplog.records if record.exc_info] == [
        "channel test cannot serve a request",
        *["the response to a request of channel test cannot be handled"] * 2,
    ]


def test_the_end(network: Network) -> None:
    """Each request ends once with NETWORK_EXCEPTION, requests after the close included."""
    network.leader = None
    network.send(1)
    network.send(2)
    assert network.channel.close()
    network.send(3)
    errors = [one.error for one in network.await_ends(3)]
    assert [error and error.error for error in errors] == [Errors.NETWORK_EXCEPTION] * 3
