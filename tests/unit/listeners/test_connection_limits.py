"""Limits of the connections of single addresses, from the configuration."""

import pytest

from kbroker.common.configs.config import BrokerConfig
from kbroker.listeners.connection_limits import address_limits


@pytest.mark.parametrize("host", ["a..b", "x" * 64])
def test_a_host_that_cannot_be_a_name(host: str, caplog: pytest.LogCaptureFixture) -> None:
    """The resolver's error for such a text differs from that for an unknown name; other limits apply in both cases."""
    config = BrokerConfig({"max.connections.per.ip.overrides": f"{host}:1,127.0.0.1:2"})
    assert address_limits(config) == {"127.0.0.1": 2}
    (line,) = caplog.messages
    assert line.startswith(f"max.connections.per.ip.overrides: {host} has no address: ")
