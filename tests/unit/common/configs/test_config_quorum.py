"""Kafka's configuration of a combined node is accepted unchanged, and that of several nodes is rejected."""

import re

import pytest

from kbroker.broker import Broker
from kbroker.common.configs.config import BrokerConfig, parse_properties
from kbroker.common.configs.config_def import ConfigError
from kbroker.common.configs.config_quorum import Address, controller_listeners, parse_voters, voter_listener

#: The settings of config/server.properties of Apache Kafka 4.3.
STOCK = """
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/tmp/kraft-combined-logs
num.partitions=1
num.recovery.threads.per.data.dir=2
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""


def config(**changes: str) -> BrokerConfig:
    """Return the stock configuration with changes, whose names have ``_`` for a dot; an empty value unsets a key."""
    values = parse_properties(STOCK)
    values.update({name.replace("_", "."): value for name, value in changes.items()})
    return BrokerConfig({name: value for name, value in values.items() if value})


def texts(listeners: list[object]) -> list[str]:
    return [str(listener) for listener in listeners]


def test_the_stock_file_is_accepted() -> None:
    found = config()
    assert texts([*found.listeners]) == ["PLAINTEXT://:9092"]
    assert texts([*found.advertised_listeners]) == ["PLAINTEXT://localhost:9092"]
    assert texts([*controller_listeners(found)]) == ["CONTROLLER://localhost:9093"]
    assert str(voter_listener(found)) == "CONTROLLER://localhost:9093"
    assert found.metadata_log_dir == found.log_dir
    assert str(config(metadata_log_dir="/meta").metadata_log_dir) == "/meta"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"advertised_listeners": ""}, "CONTROLLER://localhost:9093"),
        ({"advertised_listeners": "PLAINTEXT://a:1"}, "CONTROLLER://localhost:9093"),
        ({"advertised_listeners": "", "controller_quorum_voters": "1@box:19"}, "CONTROLLER://box:19"),
        (
            {
                "advertised_listeners": "",
                "controller_quorum_voters": "1@box:19",
                "listeners": "PLAINTEXT://:1,CONTROLLER://[::1]:7",
            },
            "CONTROLLER://[::1]:7",
        ),
        (
            {"advertised_listeners": "", "listeners": "PLAINTEXT://:1,CONTROLLER://0.0.0.0:7"},
            "CONTROLLER://localhost:7",
        ),
        (
            {
                "controller_listener_names": "B,A",
                "listener_security_protocol_map": "",
                "listeners": "A://a:1,B://b:2,PLAINTEXT://c:3",
                "advertised_listeners": "",
            },
            "B://b:2",
        ),
        (
            {"controller_listener_names": "", "listeners": "PLAINTEXT://:1", "advertised_listeners": ""},
            "CONTROLLER://localhost:9093",
        ),
    ],
)
def test_address_of_the_voter(changes: dict[str, str], expected: str) -> None:
    """The voter's address is that of Kafka's tool for --standalone: advertised, bound, or in the list of voters."""
    assert str(voter_listener(config(**changes))) == expected


def test_listeners_of_the_controller_need_no_protocol_without_tls() -> None:
    """A listener of the controller is PLAINTEXT, as in Kafka, while no listener has the name of another protocol."""
    changes = {"listener_security_protocol_map": "", "advertised_listeners": "", "controller_listener_names": "C"}
    assert texts([*config(**changes, listeners="PLAINTEXT://:1,C://:2").listeners]) == ["PLAINTEXT://:1"]
    with pytest.raises(ConfigError, match=re.escape("listener.security.protocol.map does not name C")):
        config(**changes, listeners="PLAINTEXT://:1,C://:2,SSL://:3")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"process_roles": "controller"}, "kbroker cannot be the controller of other brokers"),
        (
            {"process_roles": "broker"},
            "controller.listener.names must not contain a value appearing in the 'listeners' configuration when "
            "running KRaft with just the broker role",
        ),
        ({"process_roles": "broker,zookeeper"}, "String must be one of: broker, controller"),
        ({"controller_quorum_voters": "1@a:1,3@c:1,2@b:1"}, "cannot join controllers of other nodes (2, 3)"),
        ({"controller_quorum_voters": "2@a:1"}, "cannot join controllers of other nodes (2)"),
        ({"controller_quorum_voters": "1"}, "Each entry should be in the form `{id}@{host}:{port}`."),
        ({"controller_quorum_voters": "x@a:1"}, "Failed to parse voter ID as an integer from x"),
        ({"controller_quorum_voters": "1@a"}, "Failed to parse host name from entry 1@a"),
        ({"inter_broker_listener_name": "OTHER"}, "must be a listener name defined in advertised.listeners. The valid"),
        ({"controller_listener_names": "CONTROLLER,PLAINTEXT"}, "Perhaps all listeners appear in controller.listener"),
    ],
)
def test_refused(changes: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        config(**changes)


def test_voters() -> None:
    assert parse_voters(["1@host-1:9093", "2@[::1]:1"]) == {1: Address("host-1", 9093), 2: Address("::1", 1)}
    assert config(controller_quorum_voters="2@localhost:9093", node_id="2").node_id == 2


def test_only_the_first_listener_has_the_address_of_the_voter() -> None:
    """As in Kafka, each further listener has its own address in ``listeners``."""
    found = config(
        controller_listener_names="B,A",
        controller_quorum_voters="1@box:19",
        listeners="PLAINTEXT://:1,A://:2,B://:3",
        listener_security_protocol_map="",
        advertised_listeners="",
    )
    assert texts([*controller_listeners(found)]) == ["B://box:19", "A://:2"]


def test_what_is_not_served_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    """The stock file starts a broker, whose log names the controller's listener as not served."""
    changes = {
        "listeners": "PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
        "advertised.listeners": "",
        "kbroker.in.memory": "true",
    }
    values = {name: value for name, value in {**parse_properties(STOCK), **changes}.items() if value}
    with Broker(values) as broker:
        assert broker.bootstrap_servers.startswith("127.0.0.1:")
    assert caplog.messages[0] == "listener CONTROLLER://127.0.0.1:0 is not served: this broker is the only controller"


def test_the_age_of_a_segment_of_metadata_is_at_least_a_millisecond() -> None:
    """The error names the setting; Kafka refuses the value, too, as segment.ms of the log."""
    with pytest.raises(ConfigError, match=r"configuration metadata\.log\.segment\.ms: Value must be at least 1"):
        BrokerConfig({"metadata.log.segment.ms": "0"})
