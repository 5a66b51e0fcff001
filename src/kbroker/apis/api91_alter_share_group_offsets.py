"""AlterShareGroupOffsets: sets the start offsets of a share group without members (KIP-932)."""

from __future__ import annotations

from uuid import UUID

from kbroker.apis.share_group_requests import are_enabled, refused_group
from kbroker.common.errors import Errors, KafkaError
from kbroker.metadata.topics import ZERO_ID
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.requests.rows import error_fields
from kbroker.security.authorizer import checks


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Set start offsets of the topics that the client may read; other rows have errors. Raises: KafkaError."""
    if not are_enabled(ctx):
        raise KafkaError(Errors.UNSUPPORTED_VERSION)
    group_id = body["GroupId"]
    ctx.auth.require(request, checks.ALTER_SHARE_GROUP_OFFSETS_GROUP, group_id)
    if not group_id:
        raise KafkaError(Errors.INVALID_GROUP_ID)
    check = checks.ALTER_SHARE_GROUP_OFFSETS
    allowed = set(ctx.auth.allowed(request, check, (topic["TopicName"] for topic in body["Topics"])))
    errors: dict[tuple[str, int], KafkaError | None] = {}
    offsets: dict[str, dict[int, int]] = {}
    for topic in body["Topics"]:
        name = topic["TopicName"]
        for row in topic["Partitions"]:
            if name not in allowed or ctx.topics.get(name) is None:
                refused = check.error if name not in allowed else Errors.UNKNOWN_TOPIC_OR_PARTITION
                errors[name, row["PartitionIndex"]] = KafkaError(refused)
            else:
                offsets.setdefault(name, {})[row["PartitionIndex"]] = row["StartOffset"]
    try:
        errors |= ctx.groups.share_groups.alter_offsets(group_id, offsets)
    except KafkaError as refusal:
        return refused_group(refusal)
    topics: dict[str, list[Body]] = {}
    for (name, index), error in errors.items():
        topics.setdefault(name, []).append({"PartitionIndex": index, **error_fields(error)})
    for topic in body["Topics"]:
        if topic["TopicName"] in allowed and ctx.topics.get(topic["TopicName"]) is not None:
            topics.setdefault(topic["TopicName"], [])  # a topic without partitions has a row, as in Kafka
    responses = [{"TopicName": name, "TopicId": _id(ctx, name), "Partitions": rows} for name, rows in topics.items()]
    return {**error_fields(None), "Responses": responses}


def _id(ctx: ApiContext, name: str) -> UUID:
    view = ctx.topics.get(name)
    return ZERO_ID if view is None else view.topic_id
