"""Kafka's properties of a broker are accepted unchanged, and invalid values get Kafka's messages."""

import re

import pytest

from kbroker.common.configs.config import BrokerConfig, parse_properties
from kbroker.common.configs.config_def import ConfigError
from kbroker.common.configs.config_member import controller_listener, quorum_addresses

#: Settings of config/broker.properties of Apache Kafka 4.3.
STOCK = """
process.roles=broker
node.id=2
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://localhost:9092
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL
num.network.threads=3
num.io.threads=8
log.dirs=/tmp/kraft-broker-logs
num.partitions=1
offsets.topic.replication.factor=1
log.retention.hours=168
"""


def config(**changes: str) -> BrokerConfig:
    """Return the stock configuration with changes, whose names have ``_`` for a dot; an empty value unsets a key."""
    values = parse_properties(STOCK)
    values.update({name.replace("_", "."): value for name, value in changes.items()})
    return BrokerConfig({name: value for name, value in values.items() if value})


def test_the_stock_file_is_accepted() -> None:
    found = config()
    assert found.is_member
    assert quorum_addresses(found) == ([("localhost", 9093)], {})
    assert controller_listener(found) == ("CONTROLLER", "PLAINTEXT")
    assert not BrokerConfig({}).is_member


def test_static_voters() -> None:
    found = config(controller_quorum_bootstrap_servers="", controller_quorum_voters="1@a:1,3@[::1]:3")
    assert quorum_addresses(found) == ([], {1: ("a", 1), 3: ("::1", 3)})


def test_protocol_of_the_first_listener() -> None:
    found = config(
        controller_listener_names="secured,OTHER",
        listener_security_protocol_map="SECURED:SASL_SSL,OTHER:SSL,PLAINTEXT:PLAINTEXT",
    )
    assert controller_listener(found) == ("SECURED", "SASL_SSL")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"controller_quorum_bootstrap_servers": ""},
            "If using process.roles, either controller.quorum.bootstrap.servers must contain the set of bootstrap "
            "controllers or controller.quorum.voters must contain a parseable set of controllers.",
        ),
        (
            {"controller_quorum_voters": "2@a:1"},
            "If process.roles contains just the 'broker' role, the node id 2 must not be included in the set of voters "
            "controller.quorum.voters=Set(2)",
        ),
        (
            {"kbroker_in_memory": "true"},
            "Invalid value broker for configuration process.roles: A broker of a cluster with other controllers keeps "
            "its metadata log on disk, not in memory",
        ),
        ({"controller_listener_names": ""}, 'Missing required configuration "controller.listener.names"'),
        ({"node_id": ""}, 'Missing required configuration "node.id" which has no default value.'),
        (
            {"controller_listener_names": "PLAINTEXT,CONTROLLER"},
            "controller.listener.names must not contain a value appearing in the 'listeners' configuration when "
            "running KRaft with just the broker role",
        ),
        (
            {"controller_listener_names": "SECURED"},
            "Controller listener with name SECURED defined in controller.listener.names not found in "
            "listener.security.protocol.map",
        ),
        (
            {"controller_quorum_auto_join_enable": "true"},
            "controller.quorum.auto.join.enable is only supported when process.roles contains the 'controller' role.",
        ),
        (
            {"inter_broker_listener_name": "OTHER"},
            "inter.broker.listener.name must be a listener name defined in advertised.listeners. The valid options "
            "based on currently configured listeners are PLAINTEXT",
        ),
        ({"controller_quorum_bootstrap_servers": "localhost"}, "Failed to parse host name from entry localhost"),
        ({"controller_quorum_fetch_timeout_ms": "-1"}, "Value must be at least 0"),
    ],
)
def test_refused(changes: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        config(**changes)
