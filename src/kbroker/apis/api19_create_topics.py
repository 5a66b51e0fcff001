"""CreateTopics: each topic is checked and created separately."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from kbroker.common.errors import Errors, KafkaError
from kbroker.common.topic_names import CLUSTER_METADATA_TOPIC
from kbroker.metadata.configs.config_entries import Entry, topic_entries
from kbroker.metadata.new_topics import Created
from kbroker.metadata.topic_rules import FEW_PARTITIONS, NewTopic, excess_error, requested_partitions
from kbroker.requests.context import ApiContext, Body, LongWork, RequestContext
from kbroker.security.authorizer import checks

STRICT_FROM = 6  # first version whose clients support error 89
CONFIG_FIELDS = ("Name", "Value", "ReadOnly", "ConfigSource", "IsSensitive")


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body | LongWork:
    """Create the topics, or only check them. A duplicate name gets INVALID_REQUEST once and is not created.

    The timeout has no effect: the topic exists when the response is sent.
    """
    default = ctx.config.integer("num.partitions")
    if not body["validateOnly"] and requested_partitions(map(_new_topic, body["Topics"]), default) > FEW_PARTITIONS:
        return _create
    return _create(ctx, body, request)


def _create(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    wanted = {row["Name"]: row for row in body["Topics"]}
    times = Counter(row["Name"] for row in body["Topics"])
    once = dict.fromkeys(name for name in wanted if times[name] == 1 and name != CLUSTER_METADATA_TOPIC)
    allowed: Collection[str] = once
    if not ctx.auth.allows(request, checks.CREATE_TOPICS_ANY):
        allowed = ctx.auth.allowed(request, checks.CREATE_TOPICS, once)
    describable = ctx.auth.allowed(request, checks.CREATE_TOPICS_CONFIGS, once)
    default = ctx.config.integer("num.partitions")
    # as in Kafka, an error of the whole request, before those of single topics
    if excess := excess_error([_new_topic(row) for row in body["Topics"] if row["Name"] in allowed], default):
        return {"Topics": [_refused(row["Name"], excess.error, excess.message) for row in body["Topics"]]}
    responses: dict[str, Body] = {}
    topics: dict[str, NewTopic] = {}
    for name, row in wanted.items():
        responses[name] = {}  # reserves its position
        if times[name] > 1:
            responses[name] = _refused(name, Errors.INVALID_REQUEST, "Duplicate topic name.")
        elif name in once and name not in allowed:
            responses[name] = _refused(name, checks.CREATE_TOPICS.error, "Authorization failed.")
        else:
            topics[name] = _new_topic(row)
    quota = ctx.mutation_quota(request, request.api_version >= STRICT_FROM)
    described: dict[tuple[tuple[str, str], ...], list[Entry]] = {}  # most topics set the same configs: none
    results = ctx.topics.create_all(topics.values(), body["validateOnly"], quota.record)
    for name, made in zip(topics, results, strict=True):
        if isinstance(made, KafkaError):
            is_throttled = made.error == Errors.THROTTLING_QUOTA_EXCEEDED
            responses[name] = _refused(name, made.error, None if is_throttled else made.message)
        else:
            configs = tuple(made.configs.items())
            if name in describable and configs not in described:
                described[configs] = _entries(ctx, made)
            responses[name] = _created(name, made, described[configs] if name in describable else None)
    return {"ThrottleTimeMs": quota.throttle_time_ms, "Topics": list(responses.values())}


def failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """Return every topic with the same error."""
    names = dict.fromkeys(row["Name"] for row in body["Topics"])
    return {"Topics": [_refused(name, error, error.message) for name in names]}


def _new_topic(row: Body) -> NewTopic:
    return NewTopic(
        row["Name"],
        row["NumPartitions"],
        row["ReplicationFactor"],
        [(part["PartitionIndex"], part["BrokerIds"]) for part in row["Assignments"]],
        {config["Name"]: config["Value"] for config in row["Configs"]},
    )


def _entries(ctx: ApiContext, created: Created) -> list[Entry]:
    """Return the configs of a topic; values of the request are returned unchanged, as in Kafka."""
    return [
        {
            **{field: entry[field] for field in CONFIG_FIELDS},
            "Value": created.configs.get(entry["Name"], entry["Value"]),
        }
        for entry in topic_entries(ctx.config, created.configs)
    ]


def _created(name: str, created: Created, configs: list[Entry] | None) -> Body:
    """Return the row of a created topic. Args: ``configs``: None if the client may not see them."""
    row: Body = {"Name": name, "TopicId": created.topic_id, "ErrorCode": 0, "ErrorMessage": None}
    if configs is None:
        return {**row, "TopicConfigErrorCode": int(checks.CREATE_TOPICS_CONFIGS.error), "Configs": []}
    return {
        **row,
        "NumPartitions": created.num_partitions,
        "ReplicationFactor": created.replication_factor,
        "Configs": configs,
    }


def _refused(name: str, error: Errors, message: str | None) -> Body:
    return {"Name": name, "ErrorCode": int(error), "ErrorMessage": message, "Configs": []}
