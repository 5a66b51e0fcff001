"""Synchronous admin client: topics, partitions, configs and offsets of any Kafka cluster."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from kbroker.client.cluster import (
    UNKNOWN_TOPIC_PATIENCE_S,
    BodyFor,
    Cluster,
    TopicMetadata,
    check,
    failure_of,
    to_uuid,
)
from kbroker.client.connection import Body, BrokerConnectionError
from kbroker.client.partitions import by_leader, partition_rows, topic_rows
from kbroker.common.configs.config_resource import ConfigChange, ConfigResourceType, ConfigSource
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.java.java_text import replace_invalid_utf8
from kbroker.common.topic_names import TopicPartition

LIST_OFFSETS, CREATE_TOPICS, DELETE_TOPICS, DELETE_RECORDS = 2, 19, 20, 21
DESCRIBE_LOG_DIRS = 35
DESCRIBE_CONFIGS, CREATE_PARTITIONS, INCREMENTAL_ALTER_CONFIGS = 32, 37, 44
LIST_CONFIG_RESOURCES = 74
FIRST_WITH_TYPES = 1  # version of ListConfigResources; version 0 lists only client metrics
RESOURCES_PER_REQUEST = 500
TIMEOUT_MS = 30_000  # time limit of a change

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3  # in place of a timestamp in ListOffsets


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """One source of a config's value, and the value there."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One config: `value` is None when it is sensitive or unset; `synonyms` begin with the effective one.

    `documentation`: None unless it was requested, and the broker has it (DescribeConfigs v3 and later).
    """

    name: str
    value: str | None
    source: ConfigSource
    read_only: bool
    is_sensitive: bool
    synonyms: tuple[ConfigSynonym, ...] = ()
    documentation: str | None = None


@dataclass(frozen=True, slots=True)
class OffsetInfo:
    """Result of ListOffsets for a partition; `offset` and `timestamp_ms` are -1 if no record matches."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """Result of CreateTopics; counts are -1 from brokers before v5, `topic_id` is None before v7."""

    name: str
    topic_id: UUID | None
    partitions: int
    replication_factor: int


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to be created; -1 takes the broker's default (CreateTopics v4 and later)."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)


def own_configs(entries: Iterable[ConfigEntry]) -> dict[str, str | None]:
    """Return those configs of a topic that the topic itself sets. Args: ``entries``: all its configs."""
    return {entry.name: entry.value for entry in entries if entry.source is ConfigSource.DYNAMIC_TOPIC_CONFIG}


class MutationThrottledError(KafkaError):
    """Temporary refusal of a change by the controller mutation quota (error 89); it is not retried automatically.

    The caller may repeat the refused request after `throttle_time_ms`.
    """

    def __init__(self, what: str, throttle_time_ms: int) -> None:
        text = f"{what}: the controller mutation quota is used up, try again in {throttle_time_ms / 1000:.1f} s"
        super().__init__(Errors.THROTTLING_QUOTA_EXCEEDED, text)
        self.throttle_time_ms = throttle_time_ms


class Admin:
    """Administrative requests over a `Cluster`, which the caller owns.

    Every method raises KafkaError with the broker's code and text for the first item that failed,
    BrokerConnectionError when the cluster cannot be reached. Threads: as its Cluster.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    # ---- topics

    def list_topics(self) -> list[str]:
        """Return the names in order, without internal topics."""
        return sorted(topic.name for topic in self.cluster.fetch_metadata(None) if not topic.is_internal)

    def describe_topics(self, names: Iterable[str] | None = None) -> list[TopicMetadata]:
        """Return topics with their partitions, sorted by name; all topics if ``names`` is None.

        Raises: KafkaError for a name that is unknown or illegal.
        """
        found = self.cluster.fetch_metadata(None if names is None else list(dict.fromkeys(names)))
        for topic in found:
            check(topic.error, f"topic {topic.name!r}")
        return sorted(found, key=lambda t: t.name)

    def create_topics(self, topics: Iterable[NewTopic], *, validate_only: bool = False) -> list[CreatedTopic]:
        """Create topics, or only check that they could be created.

        Raises: KafkaError, such as TOPIC_ALREADY_EXISTS, INVALID_TOPIC_EXCEPTION, INVALID_PARTITIONS, INVALID_CONFIG;
            the topics before the failed one in the response were created. MutationThrottledError, from v6 on.
        """
        wanted = [
            {
                "Name": t.name,
                "NumPartitions": t.partitions,
                "ReplicationFactor": t.replication_factor,
                "Configs": [{"Name": k, "Value": v} for k, v in t.configs.items()],
            }
            for t in topics
        ]

        def body(version: int) -> Body:
            if version < 4 and any(t["NumPartitions"] == -1 or t["ReplicationFactor"] == -1 for t in wanted):
                raise KafkaError(
                    Errors.UNSUPPORTED_VERSION,
                    "this broker is too old for defaults: give --partitions and --replication-factor",
                )
            return {"Topics": wanted, "timeoutMs": TIMEOUT_MS, "validateOnly": validate_only}

        response = self._ask_controller(CREATE_TOPICS, body)
        for t in response["Topics"]:
            _check_topic(t, response)
        return [
            CreatedTopic(t["Name"], to_uuid(t["TopicId"]), t["NumPartitions"], t["ReplicationFactor"])
            for t in response["Topics"]
        ]

    def delete_topics(self, names: Iterable[str]) -> None:
        """Delete topics with all their data.

        Raises: KafkaError, such as UNKNOWN_TOPIC_OR_PARTITION, TOPIC_DELETION_DISABLED; MutationThrottledError. All
            other topics of the list are deleted.
        """
        wanted = list(names)

        def body(version: int) -> Body:
            listed: Body = {"Topics": [{"Name": n} for n in wanted]} if version >= 6 else {"TopicNames": wanted}
            return {**listed, "TimeoutMs": TIMEOUT_MS}

        response = self._ask_controller(DELETE_TOPICS, body)
        for t in response["Responses"]:
            self.cluster.forget(t["Name"])
        for t in response["Responses"]:
            _check_topic(t, response)

    def create_partitions(self, topic: str, total_count: int, *, validate_only: bool = False) -> None:
        """Grow a topic to `total_count` partitions.

        Raises: KafkaError INVALID_PARTITIONS unless that is more than the topic has; MutationThrottledError.
        """
        body: Body = {
            "Topics": [{"Name": topic, "Count": total_count, "Assignments": None}],
            "TimeoutMs": TIMEOUT_MS,
            "ValidateOnly": validate_only,
        }
        response = self._ask_controller(CREATE_PARTITIONS, body)
        self.cluster.forget(topic)
        for t in response["Results"]:
            _check_topic(t, response)

    def _ask_controller(self, api_key: int, body: BodyFor, timeout_ms: int = TIMEOUT_MS) -> Body:
        """Send a request to the controller; repeat it if the controller has moved and has thus changed nothing."""

        def attempt() -> Body:
            node_id = self.cluster.controller()
            response = self.cluster.request(
                api_key, body, node_id=node_id, timeout_s=timeout_ms / 1000 + self.cluster.request_timeout_s
            )
            for item in response.get("Topics") or response.get("Responses") or response.get("Results") or ():
                if item["ErrorCode"] == Errors.NOT_CONTROLLER:
                    raise KafkaError(Errors.NOT_CONTROLLER, f"node {node_id}")
            return response

        deadline = self.cluster.clock() + self.cluster.retry_timeout_s
        while True:
            try:
                return attempt()
            except KafkaError as failure:  # not cluster.retry: after a lost response the change may have been made
                if failure.error is not Errors.NOT_CONTROLLER or self.cluster.clock() > deadline:
                    raise
                self.cluster.sleep(0.1)
                self.cluster.fetch_metadata([])
            except BrokerConnectionError:
                self.cluster.nodes.clear()  # another node may be the controller by the next request
                raise

    # ---- configs

    def describe_configs(
        self,
        resource_type: ConfigResourceType,
        name: str,
        keys: Iterable[str] | None = None,
        *,
        include_synonyms: bool = False,
        include_documentation: bool = False,
    ) -> list[ConfigEntry]:
        """Return the configs of a topic or broker, sorted by name.

        Args:
            resource_type: kind of the resource.
            name: topic name or node id; "" for the dynamic configs of all brokers.
            keys: names of the configs; None for all.
            include_synonyms: list the other sources of each value too.
            include_documentation: return the documentation of each config too.
        """
        node_id = self._broker_of(resource_type, name)
        name = replace_invalid_utf8(name)  # the form in which the response has it
        extras: Body = {"IncludeSynonyms": include_synonyms, "IncludeDocumentation": include_documentation}
        return self._describe_configs(resource_type, [name], keys, extras, node_id)[name]

    def describe_topic_configs(self, names: Iterable[str]) -> dict[str, list[ConfigEntry]]:
        """Return the configs of topics by their names, with few requests."""
        wanted, found = list(names), {}
        for start in range(0, len(wanted), RESOURCES_PER_REQUEST):
            part = wanted[start : start + RESOURCES_PER_REQUEST]
            found.update(self._describe_configs(ConfigResourceType.TOPIC, part, None, {}, None))
        return found

    def _describe_configs(
        self,
        resource_type: ConfigResourceType,
        names: Iterable[str],
        keys: Iterable[str] | None,
        extras: Body,
        node_id: int | None,
    ) -> dict[str, list[ConfigEntry]]:
        wanted = None if keys is None else list(keys)
        resources = [
            {"ResourceType": int(resource_type), "ResourceName": name, "ConfigurationKeys": wanted} for name in names
        ]
        body = {"Resources": resources, **extras}
        response = self.cluster.retry(lambda: self.cluster.request(DESCRIBE_CONFIGS, body, node_id=node_id))
        found = {}
        for result in response["Results"]:
            name = result["ResourceName"]
            check(result["ErrorCode"], resource_text(resource_type, name), result.get("ErrorMessage"))
            found[name] = sorted((_config_entry(entry) for entry in result["Configs"]), key=lambda e: e.name)
        return found

    def list_config_resources(self, resource_type: ConfigResourceType) -> list[str]:
        """Return the names of all topics or brokers, or of the groups or client metrics with configs, in order.

        Raises: KafkaError UNSUPPORTED_VERSION before Kafka 4.1, except for client metrics (Kafka 3.7).
        """

        def body(version: int) -> Body:
            if version >= FIRST_WITH_TYPES:
                return {"ResourceTypes": [int(resource_type)]}
            if resource_type is not ConfigResourceType.CLIENT_METRICS:
                raise KafkaError(
                    Errors.UNSUPPORTED_VERSION, "this broker is too old to list resources with configs; name them"
                )
            return {}

        what = "listing resources with configs"
        response = self.cluster.retry(lambda: self.cluster.ask(LIST_CONFIG_RESOURCES, body, what))
        return sorted(row["ResourceName"] for row in response["ConfigResources"])

    def alter_configs(
        self,
        resource_type: ConfigResourceType,
        name: str,
        changes: Iterable[ConfigChange],
        *,
        validate_only: bool = False,
    ) -> None:
        """Change some configs of a topic or broker: either all changes are made or none. Other configs stay.

        Args:
            resource_type: kind of the resource.
            name: topic name or node id; "" for all brokers.
            changes: at most one per key.
            validate_only: only check the changes.

        Raises: KafkaError INVALID_CONFIG, UNKNOWN_TOPIC_OR_PARTITION, INVALID_REQUEST ... with the broker's reason.
        """
        wanted = [{"Name": c.name, "ConfigOperation": int(c.operation), "Value": c.value} for c in changes]
        resource = {"ResourceType": int(resource_type), "ResourceName": name, "Configs": wanted}
        body: Body = {"Resources": [resource], "ValidateOnly": validate_only}
        node_id = self._broker_of(resource_type, name)
        if node_id is None:
            response = self._ask_controller(INCREMENTAL_ALTER_CONFIGS, body, 0)
        else:
            response = self.cluster.request(INCREMENTAL_ALTER_CONFIGS, body, node_id=node_id)
        for result in response["Responses"]:
            check(result["ErrorCode"], resource_text(resource_type, name), result.get("ErrorMessage"))

    def _broker_of(self, resource_type: ConfigResourceType, name: str) -> int | None:
        """Return the node to which a request about configs must be sent; None for any node.

        Raises: as `Cluster.check_node`.
        """
        if resource_type not in (ConfigResourceType.BROKER, ConfigResourceType.BROKER_LOGGER) or not name:
            return None
        self.cluster.check_node(int(name))
        return int(name)

    # ---- offsets

    def list_offsets(
        self, wanted: Mapping[TopicPartition, int], *, read_committed: bool = False
    ) -> dict[TopicPartition, OffsetInfo]:
        """Return offsets by time.

        Args:
            wanted: per partition a timestamp in ms, or LATEST, EARLIEST, MAX_TIMESTAMP. A timestamp finds the first
                record at or after it; offset -1 without one.
            read_committed: whether LATEST is the last stable offset.

        Raises: KafkaError UNKNOWN_TOPIC_OR_PARTITION after UNKNOWN_TOPIC_PATIENCE_S.
        """
        found: dict[TopicPartition, OffsetInfo] = {}
        began_s = self.cluster.clock()

        def attempt() -> KafkaError | None:
            try:
                led = by_leader(self.cluster, (tp for tp in wanted if tp not in found))
            except KafkaError as failure:
                is_late = self.cluster.clock() - began_s >= UNKNOWN_TOPIC_PATIENCE_S
                if failure.error is Errors.UNKNOWN_TOPIC_OR_PARTITION and is_late:  # not retried for longer
                    return failure
                raise
            for node_id, partitions in led.items():
                some = self._list_offsets_of(node_id, {tp: wanted[tp] for tp in partitions}, read_committed)
                for tp, info in some.items():
                    if isinstance(info, KafkaError):
                        raise info
                    found[tp] = info
            return None

        missing = self.cluster.retry(attempt)
        if missing is not None:
            raise missing
        return found

    def offsets_at(
        self, partitions: Iterable[TopicPartition], timestamp: int = LATEST, *, read_committed: bool = False
    ) -> dict[TopicPartition, int]:
        """Return the first offset at or after a timestamp, or at EARLIEST or LATEST; the end if no record is that late.

        Args: as ``list_offsets``.
        """
        found: dict[TopicPartition, int] = {}
        wanted = list(partitions)
        for at in dict.fromkeys((timestamp, LATEST)):
            rows = self.list_offsets(dict.fromkeys(wanted, at), read_committed=read_committed)
            found.update({tp: info.offset for tp, info in rows.items()})
            wanted = [tp for tp in wanted if found[tp] < 0]
        return found

    def try_offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetInfo | KafkaError]:
        """Return offsets by time as ``list_offsets``, without retries; a failed partition has its error instead."""
        found: dict[TopicPartition, OffsetInfo | KafkaError] = {}
        led: dict[int, dict[TopicPartition, int]] = {}
        for tp, timestamp in wanted.items():
            try:
                led.setdefault(self.cluster.leader(*tp), {})[tp] = timestamp
            except KafkaError as error:
                found[tp] = error
        for node_id, some in led.items():
            try:
                found.update(self._list_offsets_of(node_id, some, False))
            except BrokerConnectionError as error:  # the other leaders may respond
                found.update(dict.fromkeys(some, KafkaError(Errors.NETWORK_EXCEPTION, str(error))))
        return found

    def _list_offsets_of(
        self, node_id: int, wanted: Mapping[TopicPartition, int], read_committed: bool
    ) -> dict[TopicPartition, OffsetInfo | KafkaError]:
        topics = topic_rows(
            (topic, {"PartitionIndex": partition, "Timestamp": timestamp})
            for (topic, partition), timestamp in wanted.items()
        )

        def body(version: int) -> Body:
            if version < 7 and MAX_TIMESTAMP in wanted.values():
                raise KafkaError(
                    Errors.UNSUPPORTED_VERSION, "this broker is too old to look up the maximum timestamp (Kafka 3.0)"
                )
            isolation: Body = {"IsolationLevel": int(read_committed)} if version >= 2 else {}
            return {
                "ReplicaId": -1,
                "Topics": topics,
                **isolation,
                "TimeoutMs": int(self.cluster.request_timeout_s * 1000),
            }

        response = self.cluster.request(LIST_OFFSETS, body, node_id=node_id)
        found: dict[TopicPartition, OffsetInfo | KafkaError] = {}
        for tp, p in partition_rows(response["Topics"]):
            failure = failure_of(p["ErrorCode"], f"partition {tp[0]}-{tp[1]}")
            found[tp] = failure or OffsetInfo(p["Offset"], p["Timestamp"], p["LeaderEpoch"])
        return found

    def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete the records before an offset of each partition; return the new first offsets.

        Args: before: offsets; -1 deletes every record.
        Raises: KafkaError OFFSET_OUT_OF_RANGE, POLICY_VIOLATION (a compacted topic) ... for the first partition that
            failed, BrokerConnectionError for the first leader; the records of the other partitions are deleted. If a
            partition has no leader, no record is deleted.
        """
        found = {}
        failure: KafkaError | BrokerConnectionError | None = None
        for node_id, places in by_leader(self.cluster, before).items():
            topics = topic_rows((tp[0], {"PartitionIndex": tp[1], "Offset": before[tp]}) for tp in places)
            body: Body = {"Topics": topics, "TimeoutMs": TIMEOUT_MS}
            limit_s = TIMEOUT_MS / 1000 + self.cluster.request_timeout_s
            try:
                response = self.cluster.request(DELETE_RECORDS, body, node_id=node_id, timeout_s=limit_s)
            except BrokerConnectionError as error:  # the other leaders may respond
                failure = failure or error
                continue
            for (topic, partition), p in partition_rows(response["Topics"]):
                refused = failure_of(p["ErrorCode"], f"partition {topic}-{partition}")
                if refused is None:
                    found[topic, partition] = p["LowWatermark"]
                failure = failure or refused
        if failure is not None:
            self.cluster.forget()  # other nodes may be the leaders by the next request
            raise failure
        return found

    def sizes(self, topics: Iterable[str] | None = None) -> dict[TopicPartition, int]:
        """Return the bytes of partitions on disk, each at its leader; all topics if ``topics`` is None.

        Partitions whose leader does not list them are left out. Raises: KafkaError CLUSTER_AUTHORIZATION_FAILED.
        """
        names = None if topics is None else set(topics)
        known = self.cluster.fetch_metadata(names)
        leaders = {(t.name, p.partition): p.leader for t in known for p in t.partitions}
        wanted = None
        if names is not None:
            wanted = [
                {"Topic": t.name, "Partitions": [p.partition for p in t.partitions]} for t in known if t.partitions
            ]
        found = {}
        for node_id in sorted({leader for leader in leaders.values() if leader >= 0}):
            what = f"log folders of node {node_id}"
            response = self.cluster.ask(DESCRIBE_LOG_DIRS, {"Topics": wanted}, what, node_id=node_id)
            for folder in response["Results"]:
                for tp, p in partition_rows(folder["Topics"]):
                    if leaders.get(tp) == node_id and not p["IsFutureKey"]:
                        found[tp] = p["PartitionSize"]
        return found


def _check_topic(row: Body, response: Body) -> None:
    """Raise the error that a response reports for one topic, if any."""
    what = f"topic {row['Name']!r}"
    if row["ErrorCode"] == Errors.THROTTLING_QUOTA_EXCEEDED:
        raise MutationThrottledError(what, response["ThrottleTimeMs"])
    check(row["ErrorCode"], what, row.get("ErrorMessage"))


def resource_text(resource_type: ConfigResourceType, name: str) -> str:
    """Return the kind and name of a resource with configs, for messages."""
    if resource_type is ConfigResourceType.BROKER and not name:
        return "all brokers"
    return f"{resource_type.name.lower().replace('_', ' ')} {name!r}"


def _config_source(code: int) -> ConfigSource:
    return ConfigSource(code if code in ConfigSource._value2member_map_ else 0)


def _config_entry(entry: Body) -> ConfigEntry:
    synonyms = [
        ConfigSynonym(one["Name"], one["Value"], _config_source(one["Source"])) for one in entry.get("Synonyms") or ()
    ]
    return ConfigEntry(
        entry["Name"],
        entry["Value"],
        _config_source(entry["ConfigSource"]),
        entry["ReadOnly"],
        entry["IsSensitive"],
        tuple(synonyms),
        entry.get("Documentation"),
    )
