"""Fixtures for pytest: ``kafka_broker``, ``kafka_topic``, ``kafka_faults``, ``broker_factory``, ``kafka_cluster``.

Pytest finds them once kbroker is installed (``pip install kbroker pytest``), or with ``-p kbroker.testing.plugin``.
Under pytest-xdist each worker has its own broker on its own port. The first test that uses a broker loads its modules.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Literal, Protocol, overload

import pytest

if TYPE_CHECKING:
    from kbroker.testing.cluster import EmbeddedCluster
    from kbroker.testing.embedded import EmbeddedBroker, VirtualBroker
    from kbroker.testing.faults import FaultRules

MARKER = "kafka_topic(name=None, partitions=1, configs={}): the topic that the fixture kafka_topic makes for this test"
CLUSTER_MARKER = (
    "kafka_cluster(brokers=3, settings=None, racks=(), virtual_clock=False): the cluster that the fixture "
    "kafka_cluster makes for this test"
)
LONGEST_PREFIX = 120

Settings = Mapping[str, object] | None


class BrokerFactory(Protocol):
    """The function that the fixture ``broker_factory`` returns."""

    @overload
    def __call__(
        self, settings: Settings = None, *, virtual_clock: Literal[True], snapshots: bool = False, start: bool = True
    ) -> VirtualBroker: ...
    @overload
    def __call__(
        self, settings: Settings = None, *, virtual_clock: bool = False, snapshots: bool = False, start: bool = True
    ) -> EmbeddedBroker: ...
    def __call__(
        self, settings: Settings = None, *, virtual_clock: bool = False, snapshots: bool = False, start: bool = True
    ) -> EmbeddedBroker:
        """Return a broker for one test; it is stopped when the test ends.

        Args: as EmbeddedBroker; ``virtual_clock``: a VirtualBroker; ``start=False``: not started yet.
        """


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)
    config.addinivalue_line("markers", CLUSTER_MARKER)


@pytest.fixture(scope="session")
def kafka_broker_settings() -> Mapping[str, object]:
    """Settings of ``kafka_broker`` by Kafka's names; override this fixture to change them."""
    return {}


@pytest.fixture(scope="session")
def kafka_broker(kafka_broker_settings: Mapping[str, object]) -> Iterator[EmbeddedBroker]:
    """The broker that all tests of this process share: in memory, on a free port of 127.0.0.1."""
    from kbroker.testing.embedded import EmbeddedBroker

    with EmbeddedBroker(kafka_broker_settings) as broker:
        yield broker


@pytest.fixture
def kafka_topic(kafka_broker: EmbeddedBroker, request: pytest.FixtureRequest) -> Iterator[str]:
    """Name of a new, empty topic for this test, deleted afterwards; ``@pytest.mark.kafka_topic`` shapes it.

    Parametrised indirectly, a number is the count of partitions, and a mapping is the marker's arguments.
    """
    wanted = _wanted(request)
    name = wanted.pop("name", None)
    if name is None:
        prefix = re.sub(r"[^A-Za-z0-9._-]+", "-", request.node.name)[:LONGEST_PREFIX]
        name = f"{prefix.strip('-.') or 'topic'}-{uuid.uuid4().hex[:8]}"
    try:
        kafka_broker.create_topic(name, **wanted)
    except TypeError as error:
        raise pytest.UsageError(f"kafka_topic takes name, partitions and configs: {error}") from None
    yield name
    if name in kafka_broker.topics:  # the test may have deleted it
        kafka_broker.delete_topic(name)


def _wanted(request: pytest.FixtureRequest) -> dict[str, Any]:
    wanted = _marked(request, "kafka_topic")
    given = getattr(request, "param", None)
    if isinstance(given, Mapping):
        wanted.update(given)
    elif given is not None:
        wanted["partitions"] = given
    return wanted


def _marked(request: pytest.FixtureRequest, name: str) -> dict[str, Any]:
    wanted: dict[str, Any] = {}
    for marker in reversed(list(request.node.iter_markers(name))):  # the closest one wins
        if marker.args:
            raise pytest.UsageError(f"{name} takes keyword arguments only, got {marker.args!r}")
        wanted.update(marker.kwargs)
    return wanted


@pytest.fixture
def kafka_cluster(request: pytest.FixtureRequest) -> Iterator[EmbeddedCluster]:
    """A cluster of three brokers for this test; ``@pytest.mark.kafka_cluster`` shapes it. See ``EmbeddedCluster``."""
    from kbroker.testing.cluster import EmbeddedCluster

    wanted = _marked(request, "kafka_cluster")
    try:
        cluster = EmbeddedCluster(**wanted)
    except TypeError as error:
        text = f"kafka_cluster takes brokers, settings, racks and virtual_clock: {error}"
        raise pytest.UsageError(text) from None
    with cluster:
        yield cluster


@pytest.fixture
def kafka_faults(kafka_broker: EmbeddedBroker) -> Iterator[FaultRules]:
    """The fault rules of ``kafka_broker``, cleared when the test ends."""
    yield kafka_broker.faults
    kafka_broker.faults.clear()


@pytest.fixture
def broker_factory() -> Iterator[BrokerFactory]:
    """Yield a factory of brokers for one test; all are stopped when the test ends. See BrokerFactory."""
    from kbroker.testing.embedded import EmbeddedBroker, VirtualBroker

    with ExitStack() as stops:

        def make(
            settings: Settings = None, *, virtual_clock: bool = False, snapshots: bool = False, start: bool = True
        ) -> Any:
            broker = (VirtualBroker if virtual_clock else EmbeddedBroker)(settings, snapshots=snapshots)
            stops.callback(broker.stop)
            if start:
                broker.start()
            return broker

        yield make
