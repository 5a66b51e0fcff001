"""Fixtures of the integration tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from kbroker.client.cluster import Cluster
from tests.support.broker import BrokerProcess
from tests.support.certificates import Certificates

if TYPE_CHECKING:
    from kbroker.broker import Broker
    from kbroker.console.app import Console
    from tests.support.client import Client
    from tests.support.secured import SecuredBroker


@pytest.fixture(scope="module")
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Broker process with the SETTINGS of the test module."""
    settings = getattr(request.module, "SETTINGS", {})
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", settings) as running:
        yield running


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def secured(request: pytest.FixtureRequest, certificates: Certificates) -> Iterator[SecuredBroker]:
    """Broker with a listener of each protocol, SCRAM users, and the SETTINGS of the test module."""
    from tests.support.secured import SecuredBroker

    with SecuredBroker(certificates, getattr(request.module, "SETTINGS", {})) as running:
        running.add_scram_users()
        yield running


@pytest.fixture
def cluster(broker: Broker) -> Iterator[Cluster]:
    """Client of the module's broker."""
    with Cluster(broker.bootstrap_servers) as opened:
        yield opened


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    """Connection to the module's broker."""
    from tests.support.client import Client

    with Client(broker.bootstrap_servers) as opened:
        yield opened


@pytest.fixture
def pages(broker: Broker) -> Iterator[Console]:
    """Console of the module's broker, which may change the broker."""
    from tests.support.console import TOKEN, pages_of

    with pages_of(broker, TOKEN, may_edit=True) as made:
        yield made
