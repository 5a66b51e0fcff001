"""Connections of the pages: one identity each, reused by the next page, closed after a failure or beyond a limit."""

from typing import Any

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.client.connection import BrokerConnectionError
from kbroker.common.errors import Errors, KafkaError
from kbroker.console import connections
from kbroker.console.connections import IDLE_MS, MAX_KEPT, Connections, Identity
from kbroker.console.requests import PageError
from kbroker.console.site import METADATA_MS, REMEMBERED_MS, Memory
from tests.support.fixtures import fixture_of

ALICE, BOB = Identity("User:alice", "10.0.0.1"), Identity("User:bob", "10.0.0.1")


class Fake:
    """Cluster that only records whether it is open."""

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self.is_open = True
        self.forgotten = 0

    def forget(self) -> None:
        self.forgotten += 1

    def close(self) -> None:
        self.is_open = False


class Rig:
    """Connections to a fake cluster."""

    def __init__(self) -> None:
        self.clock = VirtualClock(1_700_000_000_000)
        self.opened: list[Fake] = []
        self.connections = Connections(self.open, self.clock)
        self.lease: Any = self.connections.lease

    def open(self, identity: Identity) -> Any:
        self.opened.append(Fake(identity))
        return self.opened[-1]


rig = fixture_of(Rig)


def test_a_connection_is_kept_for_its_user_alone(rig: Rig) -> None:
    with rig.lease(ALICE) as first:
        pass
    assert (first.is_open, first.forgotten) == (True, 1), "topics may change until the next page"
    with rig.lease(BOB) as other:
        assert other is not first
    with rig.lease(ALICE) as again:
        assert again is first
        with rig.lease(ALICE) as beside:
            assert beside is not first
    with rig.lease(ALICE._replace(address="10.0.0.2")) as elsewhere:
        assert elsewhere is not first


@pytest.mark.parametrize(
    ("error", "stays"),
    [
        (KafkaError(Errors.TOPIC_AUTHORIZATION_FAILED), True),
        (PageError(404, "There is no such page."), True),
        (BrokerConnectionError(("b", 1), "closed"), False),
        (ZeroDivisionError(), False),
    ],
)
def test_after_a_failure(rig: Rig, error: Exception, stays: bool) -> None:
    with pytest.raises(type(error)), rig.lease(ALICE):
        raise error
    assert rig.opened[0].is_open is stays


def test_an_idle_connection_is_closed(rig: Rig) -> None:
    with rig.lease(ALICE):
        pass
    rig.clock.advance_ms(IDLE_MS + 1)
    with rig.lease(ALICE) as second:
        assert [one.is_open for one in rig.opened] == [False, True]
        assert second is rig.opened[1]


def test_the_number_of_kept_connections_is_limited(rig: Rig) -> None:
    for number in range(MAX_KEPT + 3):
        with rig.lease(Identity(f"User:{number}", "")):
            pass
    assert [one.is_open for one in rig.opened] == [False] * 3 + [True] * MAX_KEPT


def test_nothing_is_kept_after_the_end(rig: Rig) -> None:
    with rig.lease(ALICE):
        with rig.lease(BOB):
            pass
        rig.connections.close()
        assert [one.is_open for one in rig.opened] == [True, False]
    assert not rig.opened[0].is_open


def test_a_page_does_not_wait_for_a_long_throttle() -> None:
    with pytest.raises(PageError, match=r"throttles these pages for 3\.5 s more"):
        connections._sleep(3.5)


def test_a_value_is_remembered_while_it_is_valid() -> None:
    clock, made = VirtualClock(1_700_000_000_000), []
    memory = Memory(clock)

    def value(version: object = None) -> int:
        return memory.get("key", lambda: made.append(1) or len(made), version)  # type: ignore[func-returns-value]

    assert (value(), value()) == (1, 1)
    clock.advance_ms(REMEMBERED_MS)
    assert value() == 2
    memory.clear()
    assert value() == 3
    memory.clear()
    image = object()
    assert (value(image), value(image)) == (4, 4)
    clock.advance_ms(METADATA_MS - 1)
    assert value(image) == 4
    assert value(object()) == 5, "the metadata has changed"
