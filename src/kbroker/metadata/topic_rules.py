"""Checks of a new topic's name and layout, in Kafka's order and words; configs of the internal topics."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from kbroker.common.configs.config import BrokerConfig, validate_topic_configs
from kbroker.common.configs.config_def import ConfigError
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.topic_names import (
    CLUSTER_METADATA_TOPIC,
    INTERNAL_TOPICS,
    OFFSETS_TOPIC,
    SHARE_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
    invalid_name_reason,
)
from kbroker.metadata.placement import check_factor

MAX_PARTITIONS_PER_REQUEST = 10_000
FEW_PARTITIONS = 256  # a handler changes this many on its own, in about 0.1 s


class NewTopic(NamedTuple):
    """A topic to create. ``assignments``: partition number to broker ids; empty: the broker chooses."""

    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    assignments: Sequence[tuple[int, Sequence[int]]] = ()
    configs: Mapping[str, str | None] = MappingProxyType({})


class TopicNames:
    """The names of existing topics, also indexed by their spelling in metrics. Threads: one at a time."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = set(names)
        self._by_metric: dict[str, str] = {}
        for name in self._names:
            self._by_metric.setdefault(name.replace(".", "_"), name)

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def add(self, name: str) -> None:
        """Add a name of the same request. Such names may collide: Kafka compares each only with existing topics."""
        self._names.add(name)

    def colliding(self, name: str) -> str | None:
        """Return an existing name with the same metrics, which differs by dots and underscores only, or None."""
        return self._by_metric.get(name.replace(".", "_"))


class Layout(NamedTuple):
    """Numbers of partitions and replicas of a new topic, with the replicas of each partition if they are given."""

    partitions: int
    factor: int
    replicas: Sequence[Sequence[int]] = ()


def check_new_topic(topic: NewTopic, names: TopicNames, nodes: Mapping[int, bool], config: BrokerConfig) -> Layout:
    """Return the layout that a new topic gets.

    Args: ``names``: existing names; ``nodes``: whether each node is fenced; ``config``: has the defaults.
    Raises: KafkaError with Kafka's code and text.
    """
    check_new_name(topic.name, names)
    if topic.name == CLUSTER_METADATA_TOPIC:
        raise KafkaError(Errors.INVALID_REQUEST, f"Creation of internal topic {topic.name} is prohibited.")
    if topic.configs:
        check_configs(topic.configs, config)
    if topic.assignments:
        return _check_assigned(topic, nodes)
    if topic.replication_factor < -1 or topic.replication_factor == 0:
        text = "Replication factor must be larger than 0, or -1 to use the default value."
        raise KafkaError(Errors.INVALID_REPLICATION_FACTOR, text)
    if topic.num_partitions < -1 or topic.num_partitions == 0:
        text = "Number of partitions was set to an invalid non-positive value."
        raise KafkaError(Errors.INVALID_PARTITIONS, text)
    count, factor = topic.num_partitions, topic.replication_factor
    if factor == -1:
        factor = config.integer("default.replication.factor")
    check_factor(factor, nodes)
    return Layout(config.integer("num.partitions") if count == -1 else count, factor)


def check_new_name(name: str, names: TopicNames) -> None:
    """Refuse a name that is illegal, that collides, or that exists.

    Raises: KafkaError INVALID_TOPIC_EXCEPTION, TOPIC_ALREADY_EXISTS.
    """
    reason = invalid_name_reason(name)
    if reason is not None:
        raise KafkaError(Errors.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {reason}")
    if name in names:
        raise KafkaError(Errors.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    other = names.colliding(name)
    if other is not None:
        raise KafkaError(Errors.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {other}")


def check_configs(configs: Mapping[str, str | None], config: BrokerConfig) -> None:
    """Refuse configs that are not valid for a topic of a broker with this configuration.

    Raises: KafkaError INVALID_CONFIG.
    """
    nulls = [name for name, value in configs.items() if value is None]
    if nulls:
        raise KafkaError(Errors.INVALID_CONFIG, f"Null value not supported for topic configs: {','.join(nulls)}")
    given = {name: value for name, value in configs.items() if value is not None}
    try:
        validate_topic_configs(given, config)
    except ConfigError as error:
        raise KafkaError(Errors.INVALID_CONFIG, str(error)) from error


def requested_partitions(topics: Iterable[NewTopic], default: int) -> int:
    """Return the number of partitions of the new topics, as limited. Source: ``validateTotalNumberOfPartitions``."""
    return sum(
        len(topic.assignments) or (default if topic.num_partitions == -1 else max(topic.num_partitions, 0))
        for topic in topics
        if topic.name != CLUSTER_METADATA_TOPIC  # refused before the others are counted
    )


def excess_error(topics: Iterable[NewTopic], default: int) -> KafkaError | None:
    """Return the error of a request for topics if they have too many partitions, else None."""
    return too_many_partitions() if requested_partitions(topics, default) > MAX_PARTITIONS_PER_REQUEST else None


def too_many_partitions() -> KafkaError:
    """Return the error for a request for more than ``MAX_PARTITIONS_PER_REQUEST`` new partitions."""
    return KafkaError(Errors.POLICY_VIOLATION, "Excessively large number of partitions per request.")


def check_more_partitions(
    name: str,
    current: int,
    factor: int,
    count: int,
    assignments: Sequence[Sequence[int]] | None,
    nodes: Mapping[int, bool],
) -> None:
    """Refuse a count that does not grow the topic, and assignments that do not fit it.

    Also refuse more partitions of an internal topic, whose coordinator finds a key by their number (Kafka accepts them,
    and then loses its groups' offsets). Raises: KafkaError.
    """
    if count == current:
        raise KafkaError(Errors.INVALID_PARTITIONS, f"Topic already has {current} partition(s).")
    if count < current:
        text = f"The topic {name} currently has {current} partition(s); {count} would not be an increase."
        raise KafkaError(Errors.INVALID_PARTITIONS, text)
    if name in INTERNAL_TOPICS:
        text = (
            f"The internal topic {name} has {current} partition(s), and their number is fixed: groups and "
            "transactional ids are assigned to them by hash. Set the number in the broker's configuration before the "
            "topic is created."
        )
        raise KafkaError(Errors.INVALID_PARTITIONS, text)
    added = count - current
    if assignments is not None and len(assignments) != added:
        text = (
            f"Attempted to add {added} additional partition(s), "
            f"but only {len(assignments)} assignment(s) were specified."
        )
        raise KafkaError(Errors.INVALID_REPLICA_ASSIGNMENT, text)
    if added > MAX_PARTITIONS_PER_REQUEST:
        raise too_many_partitions()
    if assignments is None:
        check_factor(factor, nodes)
        return
    for index, brokers in enumerate(assignments, current):
        check_assignment(brokers, nodes, factor)
        _check_served(index, brokers, nodes)


def check_assignment(brokers: Sequence[int], nodes: Mapping[int, bool], factor: int | None = None) -> None:
    """Refuse a replica list that is empty, has a duplicate or unknown broker, or differs in length from ``factor``.

    Raises: KafkaError INVALID_REPLICA_ASSIGNMENT.
    """
    text = ""
    if not brokers:
        text = "The manual partition assignment includes an empty replica list."
    for previous, broker in zip([None, *sorted(brokers)], sorted(brokers), strict=False):
        if broker == previous:
            text = f"The manual partition assignment includes the broker {broker} more than once."
        elif broker not in nodes:
            text = f"The manual partition assignment includes broker {broker}, but no such broker is registered."
        if text:
            break
    if not text and factor is not None and len(brokers) != factor:
        text = (
            f"The manual partition assignment includes a partition with {len(brokers)} replica(s), but this is not "
            f"consistent with previous partitions, which have {factor} replica(s)."
        )
    if text:
        raise KafkaError(Errors.INVALID_REPLICA_ASSIGNMENT, text)


def _check_served(index: int, brokers: Sequence[int], nodes: Mapping[int, bool]) -> None:
    if all(nodes[broker] for broker in brokers):
        text = (
            f"All brokers specified in the manual partition assignment for partition {index} are fenced or in "
            "controlled shutdown."
        )
        raise KafkaError(Errors.INVALID_REPLICA_ASSIGNMENT, text)


def _check_assigned(topic: NewTopic, nodes: Mapping[int, bool]) -> Layout:
    if topic.replication_factor != -1:
        text = "A manual partition assignment was specified, but replication factor was not set to -1."
        raise KafkaError(Errors.INVALID_REQUEST, text)
    if topic.num_partitions != -1:
        text = "A manual partition assignment was specified, but numPartitions was not set to -1."
        raise KafkaError(Errors.INVALID_REQUEST, text)
    seen: dict[int, Sequence[int]] = {}
    factor: int | None = None
    for index, brokers in topic.assignments:
        if index in seen:
            text = f"Found multiple manual partition assignments for partition {index}"
            raise KafkaError(Errors.INVALID_REPLICA_ASSIGNMENT, text)
        check_assignment(brokers, nodes, factor)
        _check_served(index, brokers, nodes)
        factor = len(brokers)
        seen[index] = brokers
    if seen.keys() != set(range(len(seen))):
        text = "partitions should be a consecutive 0-based integer sequence"
        raise KafkaError(Errors.INVALID_REPLICA_ASSIGNMENT, text)
    return Layout(len(seen), factor or 0, [seen[index] for index in range(len(seen))])


#: Prefix of the settings of each internal topic.
SETTING_PREFIXES = {
    OFFSETS_TOPIC: "offsets.topic",
    TRANSACTION_STATE_TOPIC: "transaction.state.log",
    SHARE_STATE_TOPIC: "share.coordinator.state.topic",
}


def automatic_topic(name: str, config: BrokerConfig, node_count: int = 1) -> NewTopic:
    """Return the topic that is created when it is first used: an internal one, or one with the broker's defaults.

    An internal topic has at most as many replicas as there are nodes; otherwise it could not be created.
    """
    prefix = SETTING_PREFIXES.get(name)
    if prefix is None:
        return NewTopic(name)
    configs = {
        OFFSETS_TOPIC: offsets_topic_configs,
        TRANSACTION_STATE_TOPIC: transaction_topic_configs,
        SHARE_STATE_TOPIC: share_state_topic_configs,
    }[name](config)
    factor = min(config.integer(f"{prefix}.replication.factor"), node_count)
    return NewTopic(name, config.integer(f"{prefix}.num.partitions"), factor, configs=configs)


def offsets_topic_configs(config: BrokerConfig) -> dict[str, str | None]:
    """Return the configs of ``__consumer_offsets``: compacted."""
    return {
        "compression.type": "producer",
        "segment.bytes": str(config.integer("offsets.topic.segment.bytes")),
        "cleanup.policy": "compact",
    }


def share_state_topic_configs(config: BrokerConfig) -> dict[str, str | None]:
    """Return the configs of ``__share_group_state``: its coordinator deletes records, retention does not."""
    return {
        "cleanup.policy": "delete",
        "compression.type": "producer",
        "min.insync.replicas": str(config.integer("share.coordinator.state.topic.min.isr")),
        "retention.ms": "-1",
        "segment.bytes": str(config.integer("share.coordinator.state.topic.segment.bytes")),
    }


def transaction_topic_configs(config: BrokerConfig) -> dict[str, str | None]:
    """Return the configs of ``__transaction_state``: compacted, never compressed."""
    return {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "min.insync.replicas": str(config.integer("transaction.state.log.min.isr")),
        "segment.bytes": str(config.integer("transaction.state.log.segment.bytes")),
        "unclean.leader.election.enable": "false",
    }
