"""Keys of a broker whose controllers are other nodes (``process.roles=broker``), and the checks of its configuration.

Source: ``KRaftConfigs``, ``QuorumConfig``, ``KafkaConfig.validateValues``.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from kbroker.common.configs.config_def import ConfigError, ConfigKey, between, key
from kbroker.common.configs.config_quorum import (
    BOOTSTRAP_SERVERS,
    LISTENER_NAMES,
    PROTOCOL_MAP,
    ROLES,
    VOTERS,
    Address,
    check_inter_broker_listener,
    controller_listeners,
    parse_address,
    parse_voters,
    protocol_words,
    refused,
)
from kbroker.common.loggers import get_logger

if TYPE_CHECKING:
    from kbroker.common.configs.config import BrokerConfig

logger = get_logger(__name__)

HEARTBEAT, SESSION = "broker.heartbeat.interval.ms", "broker.session.timeout.ms"

MEMBER_KEYS: tuple[ConfigKey, ...] = (
    key("broker.heartbeat.interval.ms", "int", 2000,
        "Milliseconds between two heartbeats of a broker to the controller of its cluster."),
    key("broker.session.timeout.ms", "int", 9000,
        "Milliseconds without a heartbeat after which the controller fences a broker; the controller's value counts."),
    key("controller.quorum.fetch.max.bytes", "int", 1_048_576,
        "Bytes of metadata that a response of a controller may have.", between(1), importance="low"),
    key("controller.quorum.fetch.snapshot.max.bytes", "int", 1_048_576,
        "Bytes of a snapshot of the metadata that a response of a controller may have.", between(1), importance="low"),
    key("controller.quorum.fetch.timeout.ms", "int", 2000,
        "Milliseconds without a response of the active controller after which the broker looks for another one.",
        between(0), importance="high"),
    key("controller.quorum.request.timeout.ms", "int", 2000,
        "Milliseconds for a response of a controller to a request for metadata.", between(0)),
    key("controller.quorum.retry.backoff.ms", "int", 20,
        "Milliseconds until a controller that has failed gets the next request for metadata.", between(0),
        importance="low"),
    key("controller.socket.timeout.ms", "int", 30_000,
        "Milliseconds for a response of the active controller to any other request."),
    key("initial.broker.registration.timeout.ms", "int", 60_000,
        "Milliseconds within which a broker must register with the controllers; it ends otherwise."),
    key("log.dir.failure.timeout.ms", "long", 30_000,
        "Milliseconds within which a broker must report a failed log directory to a controller; it ends otherwise.",
        between(1), importance="low"),
    key("sasl.mechanism.controller.protocol", "string", "GSSAPI",
        "SASL mechanism with which a broker logs in to the controllers, if their listener requires it: PLAIN or a "
        "SCRAM mechanism. Its user is in listener.name.<listener>.<mechanism>.sasl.jaas.config.", importance="high"),
)  # fmt: skip


def quorum_addresses(config: BrokerConfig) -> tuple[list[Address], dict[int, Address]]:
    """Return the bootstrap servers, and the static voters by node id. Raises: ConfigError."""
    form = f"for the configuration {BOOTSTRAP_SERVERS}. Each entry should be in the form `{{host}}:{{port}}`."
    servers = [parse_address(word, f"from entry {word} {form}") for word in config.words(BOOTSTRAP_SERVERS)]
    return servers, parse_voters(config.words(VOTERS))


def controller_listener(config: BrokerConfig) -> tuple[str, str]:
    """Return name and security protocol of the controllers' listener. Raises: ConfigError."""
    name = config.words(LISTENER_NAMES)[0].upper()
    for word in protocol_words(config):
        listener, _, protocol = word.partition(":")
        if listener.strip().upper() == name:
            return name, protocol.strip().upper()
    raise refused(
        f"Controller listener with name {name} defined in {LISTENER_NAMES} not found in {PROTOCOL_MAP}  (an explicit "
        f"security mapping for each controller listener is required if {PROTOCOL_MAP} is non-empty, or if there are "
        "security protocols other than PLAINTEXT in use)"
    )


def check_member(config: BrokerConfig) -> None:
    """Check the configuration of a broker with other controllers, in Kafka's words. Raises: ConfigError."""
    for name in ("node.id", LISTENER_NAMES):
        if not config.is_set(name):
            raise refused(f'Missing required configuration "{name}" which has no default value.')
    servers, voters = quorum_addresses(config)
    check_controllers(servers, voters)
    check_broker_only(config, voters)
    if config.boolean("kbroker.in.memory"):
        reason = "A broker of a cluster with other controllers keeps its metadata log on disk, not in memory"
        raise ConfigError(ROLES, ",".join(config.words(ROLES)), reason, "unset or broker,controller, in memory")
    if not config.words(LISTENER_NAMES):
        raise refused(f"{LISTENER_NAMES} must contain at least one value when running KRaft with just the broker role")
    controller_listener(config)
    if str(config.unknown.get("controller.quorum.auto.join.enable", "")).strip().lower() == "true":
        text = f"is only supported when {ROLES} contains the 'controller' role."
        raise refused(f"controller.quorum.auto.join.enable {text}")
    if not config.text("inter.broker.listener.name"):
        check_inter_broker_listener(config, config.text("security.inter.broker.protocol"))
    if config.integer(HEARTBEAT) * 2 > config.integer(SESSION):
        logger.error(
            "%s (%d ms) must be less than or equal to half of the %s (%d ms)",
            HEARTBEAT, config.integer(HEARTBEAT), SESSION, config.integer(SESSION),
        )  # fmt: skip


def check_controllers(servers: Collection[Address], voters: Collection[int]) -> None:
    """Check that there are controllers. Raises: ConfigError."""
    if not voters and not servers:
        raise refused(
            f"If using {ROLES}, either {BOOTSTRAP_SERVERS} must contain the set of bootstrap controllers or "
            f"{VOTERS} must contain a parseable set of controllers."
        )


def check_broker_only(config: BrokerConfig, voters: Collection[int]) -> None:
    """Check that the node is not a controller itself. Raises: ConfigError."""
    if config.node_id in voters:
        raise refused(
            f"If {ROLES} contains just the 'broker' role, the node id {config.node_id} must not be included in the "
            f"set of voters {VOTERS}={scala_set(voters)}"
        )
    if controller_listeners(config):
        raise refused(
            f"{LISTENER_NAMES} must not contain a value appearing in the 'listeners' configuration when running "
            "KRaft with just the broker role"
        )


def scala_set(ids: Collection[int]) -> str:
    """Return ids as Scala shows a set of them."""
    return f"Set({', '.join(map(str, sorted(ids)))})"
