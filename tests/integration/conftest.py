"""Fixtures of the integration tests."""

from collections.abc import Iterator

import pytest

from tests.support.broker import BrokerProcess


@pytest.fixture(scope="module")
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker process for the tests of a module, with the settings that the module has as SETTINGS."""
    settings = getattr(request.module, "SETTINGS", {})
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", settings) as running:
        yield running
