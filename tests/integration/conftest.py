"""Fixtures of the integration tests."""

from collections.abc import Iterator

import pytest

from tests.support.broker import BrokerProcess
from tests.support.certificates import Certificates


@pytest.fixture(scope="module")
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Start a broker process for the tests of a module, with the settings of its SETTINGS."""
    settings = getattr(request.module, "SETTINGS", {})
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", settings) as running:
        yield running


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))
