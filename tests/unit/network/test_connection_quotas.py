"""Limits of connections: valid values, and configuration errors."""

import pytest

from kbroker.common.configs.config import BrokerConfig
from kbroker.common.configs.config_broker import host_limits
from kbroker.common.configs.config_def import ConfigError
from kbroker.network.connections._connection_quotas import UNLIMITED, ConnectionQuotas


def test_limits_that_cannot_be() -> None:
    """Negative limits and addresses that are too long are refused without a change of the limits."""
    quotas = ConnectionQuotas()
    assert (quotas.count(), quotas.count("10.0.0.1"), quotas.refused) == (0, 0, 0)
    for limits in ((-1, 1, None), (1, -1, None), (1, 1, {"10.0.0.1": -1}), (1, 1, {"x" * 64: 1})):
        with pytest.raises(ValueError, match=r"must be >= 0|too long"):
            quotas.update(*limits)
    quotas.update(UNLIMITED, 0, {f"10.0.{n}.1": n for n in range(200)})


def test_overrides_as_text() -> None:
    """Overrides are host:number pairs with commas and optional blanks; IPv6 addresses may have brackets."""
    assert host_limits("") == {}
    assert host_limits("127.0.0.1:5, localhost : 7 ,[::1]:2") == {"127.0.0.1": 5, "localhost": 7, "::1": 2}
    for wrong in ("127.0.0.1", ":5", "a:b", "a:-1", "a:" + "9" * 5000):
        with pytest.raises(ConfigError, match=r"max\.connections\.per\.ip\.overrides"):
            host_limits(wrong)


def test_zero_per_address_needs_overrides() -> None:
    """A limit of 0 without overrides would refuse every client and is an error, with Kafka's text."""
    with pytest.raises(ConfigError, match="can be set to zero only if"):
        BrokerConfig({"max.connections.per.ip": 0})
    BrokerConfig({"max.connections.per.ip": 0, "max.connections.per.ip.overrides": "127.0.0.1:1"})
