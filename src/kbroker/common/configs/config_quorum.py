"""Keys of a node's roles and of the quorum of controllers, and the addresses in them.

A broker without ``process.roles`` is its own only controller and serves no listener of a controller; the address of
that listener is part of the metadata log, so that Apache Kafka can serve the same folder. A broker with
``process.roles=broker`` has other controllers (``config_member``).
Source: ``KRaftConfigs``, ``QuorumConfig``, ``KafkaConfig``, ``AbstractKafkaConfig``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from kbroker.common.configs.config_def import INT32_MAX, ConfigError, ConfigKey, between, key, one_of
from kbroker.common.java.java_values import parse_long
from kbroker.common.listeners import Listener, advertised_listeners, parse_listeners

if TYPE_CHECKING:
    from kbroker.common.configs.config import BrokerConfig

BROKER_ROLE, CONTROLLER_ROLE = "broker", "controller"
ROLES, LISTENER_NAMES = "process.roles", "controller.listener.names"
VOTERS, BOOTSTRAP_SERVERS = "controller.quorum.voters", "controller.quorum.bootstrap.servers"
PROTOCOL_MAP = "listener.security.protocol.map"

QUORUM_KEYS: tuple[ConfigKey, ...] = (
    key(ROLES, "list", (BROKER_ROLE, CONTROLLER_ROLE),
        "Roles of the process. Both, or unset: the node is the only broker and the controller of its cluster. broker: "
        "it is a broker of a cluster whose controllers are nodes of Apache Kafka.",
        one_of(BROKER_ROLE, CONTROLLER_ROLE), importance="high"),
    key(LISTENER_NAMES, "list", (),
        "Names of the listeners of controllers. They are not served; the address of the first one is part of the "
        "metadata log. With process.roles=broker the first one gives the security protocol of the controllers.",
        importance="high"),
    key(VOTERS, "list", (), "Controllers of the cluster: id@host:port, separated by commas. Names this node alone, "
        "or is unset; with process.roles=broker, the controllers of a cluster with static voters.", importance="high"),
    key(BOOTSTRAP_SERVERS, "list", (), "Addresses of controllers, host:port, separated by commas. Without effect "
        "unless process.roles=broker.", importance="high"),
    key("metadata.log.dir", "string", None, "Folder of the metadata log; unset: the first folder of log.dirs.",
        importance="high"),
    key("metadata.log.max.record.bytes.between.snapshots", "long", 20 * 1024 * 1024,
        "Bytes of new records in the metadata log after which a snapshot of the metadata is written.", between(1),
        importance="high"),
    key("metadata.log.max.snapshot.interval.ms", "long", 3_600_000,
        "Milliseconds after a change of the metadata within which a snapshot is written; 0: only the bytes count.",
        between(0), importance="high"),
    key("metadata.log.segment.bytes", "int", 1024 * 1024 * 1024, "Segment size of the metadata log.",
        between(8 * 1024 * 1024), importance="high"),
    key("metadata.log.segment.ms", "long", 604_800_000,
        "Milliseconds after which a segment of the metadata log is sealed.", between(1), importance="high"),
    key("metadata.max.retention.bytes", "long", 100 * 1024 * 1024,
        "Bytes of the metadata log with its snapshots above which old snapshots, and the records that a newer one "
        "contains, are deleted; -1: no limit.", importance="high"),
    key("metadata.max.retention.ms", "long", 604_800_000,
        "Milliseconds after which old snapshots, and the records that a newer one contains, are deleted; -1: never.",
        importance="high"),
)  # fmt: skip

DEFAULT_VOTER = Listener("CONTROLLER", "PLAINTEXT", "localhost", 9093)
_TLS_OR_SASL = frozenset({"SSL", "SASL_PLAINTEXT", "SASL_SSL"})
_FORM = "Each entry should be in the form `{id}@{host}:{port}`."
# a host and a port as Kafka's tools read them: the host of an IPv6 address is in brackets
_ADDRESS = r"(?:[A-Za-z][A-Za-z0-9_]*://)?\[?([0-9a-zA-Z\-._%:]*)\]?:([0-9]{1,10})"  # cached by re


class Address(NamedTuple):
    """Host and port of a controller."""

    host: str
    port: int


def parse_voters(words: Sequence[str]) -> dict[int, Address]:
    """Return the addresses of the voters in ``id@host:port`` words, by node id. Raises: ConfigError."""
    found = {}
    for word in words:
        parts = word.split("@")
        if len(parts) != 2:
            raise ConfigError("", word, f"Invalid configuration value for {VOTERS}. {_FORM}")
        node_id = parse_long(parts[0])
        if node_id is None or not -INT32_MAX - 1 <= node_id <= INT32_MAX:
            raise ConfigError("", word, f"Failed to parse voter ID as an integer from {parts[0]}")
        found[node_id] = parse_address(parts[1], f"from entry {word} for the configuration {VOTERS}. {_FORM}")
    return found


def parse_address(text: str, where: str) -> Address:
    """Return host and port of a word. Args: ``where``: the end of an error's text. Raises: ConfigError."""
    match = re.fullmatch(_ADDRESS, text)
    if match is None or not match[1]:
        raise ConfigError("", text, f"Failed to parse host name {where}")
    return Address(match[1], int(match[2]))


def broker_listeners(config: BrokerConfig) -> list[Listener]:
    """Return the listeners to bind: all but those of the controller. Raises: ConfigError."""
    names = _controller_names(config)
    bound = parse_listeners("listeners", config.words("listeners"), protocol_words(config))
    if not (found := [listener for listener in bound if listener.name not in names]):
        text = (
            f"There must be at least one broker advertised listener. Perhaps all listeners appear in {LISTENER_NAMES}?"
        )
        raise ConfigError("", config.words("listeners"), text)
    return found


def broker_advertised_listeners(config: BrokerConfig) -> list[Listener]:
    """Return the addresses that clients get; empty when they follow from ``listeners``. Raises: ConfigError."""
    names = _controller_names(config)
    words = [word for word in config.words("advertised.listeners") if _name(word) not in names]
    return advertised_listeners(words, broker_listeners(config), config.words(PROTOCOL_MAP))


def controller_listeners(config: BrokerConfig) -> list[Listener]:
    """Return the advertised addresses of the controller's listeners, in the order of their names.

    An address that is neither advertised nor routable is the one in ``controller.quorum.voters``, if this node is a
    voter there; else its host is empty. Raises: ConfigError.
    """
    protocols = protocol_words(config)
    names = _controller_names(config)
    words = [word for word in config.words("advertised.listeners") if _name(word) in names]
    advertised = {listener.name: listener for listener in parse_listeners("advertised.listeners", words, protocols)}
    bound = {listener.name: listener for listener in parse_listeners("listeners", config.words("listeners"), protocols)}
    found = []
    for name in names:
        listener = advertised.get(name) or bound.get(name)
        if listener is None:
            continue
        if name not in advertised and listener.host in ("", "0.0.0.0"):
            address = Address("", listener.port)
            if name == names[0]:
                address = parse_voters(config.words(VOTERS)).get(config.node_id, address)
            listener = listener._replace(host=address.host, port=address.port)
        found.append(listener)
    return found


def voter_listener(config: BrokerConfig) -> Listener:
    """Return the controller's address for the metadata log; without a listener of the controller, Kafka's usual one."""
    found = controller_listeners(config)
    return found[0]._replace(host=found[0].host or "localhost") if found else DEFAULT_VOTER


def check_quorum(config: BrokerConfig) -> None:
    """Refuse a node that is not a broker, and a combined node among other controllers. Raises: ConfigError."""
    roles = config.words(ROLES)
    if config.is_member:
        from kbroker.common.configs.config_member import check_member

        check_member(config)
        return
    if set(roles) != {BROKER_ROLE, CONTROLLER_ROLE}:
        reason = "kbroker cannot be the controller of other brokers"
        raise ConfigError(ROLES, ",".join(roles), reason, "broker or broker,controller")
    others = sorted(set(parse_voters(config.words(VOTERS))) - {config.node_id})
    if others:
        reason = (
            f"kbroker is the only controller of its cluster, and cannot join controllers of other nodes "
            f"({', '.join(map(str, others))})"
        )
        raise ConfigError(VOTERS, ",".join(config.words(VOTERS)), reason, f"{config.node_id}@host:port, or unset")


def check_inter_broker_listener(config: BrokerConfig, name: str) -> None:
    """Check that the name of the inter-broker listener is that of a listener. Raises: ConfigError."""
    names = [one.name for one in broker_advertised_listeners(config) or broker_listeners(config)]
    if name not in names:
        raise refused(
            "inter.broker.listener.name must be a listener name defined in advertised.listeners. The valid options "
            f"based on currently configured listeners are {','.join(names)}"
        )


def refused(text: str) -> ConfigError:
    """Return an error with Kafka's text about several keys."""
    return ConfigError("", "", text)


def _controller_names(config: BrokerConfig) -> list[str]:
    return [name.upper() for name in config.words(LISTENER_NAMES)]


def _name(word: str) -> str:
    return word.partition("://")[0].upper()


def protocol_words(config: BrokerConfig) -> tuple[str, ...]:
    """Return ``listener.security.protocol.map``; by default it includes the controller's listeners, as PLAINTEXT.

    If a listener has the name of a protocol with TLS or SASL, the controller's listeners need an entry in the map, as
    in Kafka.
    """
    words, names = config.words(PROTOCOL_MAP), config.words(LISTENER_NAMES)
    if config.is_set(PROTOCOL_MAP) or not _TLS_OR_SASL.isdisjoint((*names, *map(_name, config.words("listeners")))):
        return words
    return (*words, *(f"{name}:PLAINTEXT" for name in names if name != "PLAINTEXT"))
