"""CreateTopics: each topic checked and made on its own."""

from __future__ import annotations

from kbroker.common.errors import Errors, KafkaError
from kbroker.server.config_entries import topic_entries
from kbroker.server.context import ApiContext, Body, RequestContext
from kbroker.server.topic_rules import MAX_PARTITIONS_PER_REQUEST, NewTopic

CONFIG_FIELDS = ("Name", "Value", "ReadOnly", "ConfigSource", "IsSensitive")


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Create the topics, or only check them. A name that comes twice gets INVALID_REQUEST once, and is not made.

    The time-out counts for nothing: a topic is there when the answer leaves.
    """
    wanted: dict[str, list[Body]] = {}
    for row in body["Topics"]:
        wanted.setdefault(row["Name"], []).append(row)
    total = sum(max(row["NumPartitions"], len(row["Assignments"])) for row in body["Topics"])
    answers = []
    for name, rows in wanted.items():
        try:
            if len(rows) > 1:
                raise KafkaError(Errors.INVALID_REQUEST, "Duplicate topic name.")
            if total > MAX_PARTITIONS_PER_REQUEST:
                raise KafkaError(Errors.POLICY_VIOLATION, "Excessively large number of partitions per request.")
            answers.append(_create(ctx, rows[0], body["validateOnly"]))
        except KafkaError as error:
            answers.append(_refused(name, error.error, error.message))
    return {"Topics": answers}


def failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """Every topic with the same error."""
    names = dict.fromkeys(row["Name"] for row in body["Topics"])
    return {"Topics": [_refused(name, error, error.message) for name in names]}


def _create(ctx: ApiContext, row: Body, validate_only: bool) -> Body:
    topic = NewTopic(
        row["Name"],
        row["NumPartitions"],
        row["ReplicationFactor"],
        [(part["PartitionIndex"], part["BrokerIds"]) for part in row["Assignments"]],
        {config["Name"]: config["Value"] for config in row["Configs"]},
    )
    created = ctx.topics.create(topic, validate_only)
    entries = topic_entries(ctx.config, created.configs)
    return {
        "Name": row["Name"],
        "TopicId": created.topic_id,
        "ErrorCode": 0,
        "ErrorMessage": None,
        "NumPartitions": created.num_partitions,
        "ReplicationFactor": 1,
        "Configs": [{name: entry[name] for name in CONFIG_FIELDS} for entry in entries],
    }


def _refused(name: str, error: Errors, message: str) -> Body:
    return {"Name": name, "ErrorCode": int(error), "ErrorMessage": message, "Configs": []}
