"""Limits of connections as values: what is refused, and configuration that cannot be."""

import pytest

from kbroker.common.configs.config import BrokerConfig
from kbroker.common.configs.config_broker import host_limits
from kbroker.common.configs.config_def import ConfigError
from kbroker.network.connections._connection_quotas import UNLIMITED, ConnectionQuotas


def test_limits_that_cannot_be() -> None:
    """Negative limits and addresses longer than any are refused, and the old limits stay."""
    quotas = ConnectionQuotas()
    assert (quotas.count(), quotas.count("10.0.0.1"), quotas.refused) == (0, 0, 0)
    for limits in ((-1, 1, None), (1, -1, None), (1, 1, {"10.0.0.1": -1}), (1, 1, {"x" * 64: 1})):
        with pytest.raises(ValueError, match=r"must be >= 0|too long"):
            quotas.update(*limits)
    quotas.update(UNLIMITED, 0, {f"10.0.{n}.1": n for n in range(200)})


def test_overrides_as_text() -> None:
    """host:number with commas, blanks around, IPv6 with or without brackets."""
    assert host_limits("") == {}
    assert host_limits("127.0.0.1:5, localhost : 7 ,[::1]:2") == {"127.0.0.1": 5, "localhost": 7, "::1": 2}
    for wrong in ("127.0.0.1", ":5", "a:b", "a:-1"):
        with pytest.raises(ConfigError, match=r"max\.connections\.per\.ip\.overrides"):
            host_limits(wrong)


def test_zero_per_address_needs_overrides() -> None:
    """Kafka's rule and words: with 0 and no overrides no client could connect."""
    with pytest.raises(ConfigError, match="can be set to zero only if"):
        BrokerConfig({"max.connections.per.ip": 0})
    BrokerConfig({"max.connections.per.ip": 0, "max.connections.per.ip.overrides": "127.0.0.1:1"})
