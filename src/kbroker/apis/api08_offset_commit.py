"""OffsetCommit: stores the offsets that a group has read."""

from __future__ import annotations

from kbroker.common.errors import Errors, KafkaError
from kbroker.common.java.java_text import java_length
from kbroker.coordinator.group_records import CommittedOffset
from kbroker.metadata.topics import TopicView
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.security.authorizer import checks

FIRST_WITH_IDS = 10
FIRST_WITH_GROUP_NOT_FOUND = 9
NONE = Errors.NONE


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Commit the valid offsets; each partition has its own code. From v10 topics have ids.

    A topic without partitions has no row. Raises: KafkaError if no offset could be committed.
    """
    ctx.auth.require(request, checks.OFFSET_COMMIT_GROUP, body["GroupId"])
    by_id = request.api_version >= FIRST_WITH_IDS
    now_ms = ctx.clock.wall_ms()
    retention_ms = body.get("RetentionTimeMs", -1)
    expires_ms = now_ms + retention_ms if retention_ms >= 0 else -1
    topics: list[tuple[Body, TopicView | None, str]] = []
    for topic in body["Topics"]:
        view = ctx.topics.get_by_id(topic["TopicId"]) if by_id else ctx.topics.get(topic["Name"])
        topics.append((topic, view, view.name if view is not None else "" if by_id else topic["Name"]))
    allowed = ctx.auth.allowed(request, checks.OFFSET_COMMIT, [name for _, _, name in topics if name or not by_id])
    offsets: dict[tuple[str, int], CommittedOffset] = {}
    responses: list[tuple[Body, list[tuple[int, Errors]]]] = []
    for topic, view, name in topics:
        rows: list[tuple[int, Errors]] = []
        for row in topic["Partitions"]:
            index = row["PartitionIndex"]
            metadata = row["CommittedMetadata"] or ""
            error = NONE
            if view is None and by_id:
                error = Errors.UNKNOWN_TOPIC_ID
            elif name not in allowed:
                error = checks.OFFSET_COMMIT.error
            elif view is None or not 0 <= index < len(view.partitions):
                error = Errors.UNKNOWN_TOPIC_OR_PARTITION
            elif metadata and java_length(metadata) > ctx.config.integer("offset.metadata.max.bytes"):
                error = Errors.OFFSET_METADATA_TOO_LARGE  # counted in Java's characters, not in bytes
            else:
                epoch = row.get("CommittedLeaderEpoch", -1)
                value = CommittedOffset(row["CommittedOffset"], epoch, metadata, now_ms, expires_ms)
                offsets[name, index] = value
            rows.append((index, error))
        if rows:
            responses.append((topic, rows))
    refused = _commit(ctx, body, offsets, request) if offsets else NONE
    return {"Topics": [_topic(topic, rows, refused) for topic, rows in responses]}


def failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """Return every partition with the same error."""
    topics = []
    for topic in body["Topics"]:
        topics.append(_topic(topic, [(row["PartitionIndex"], error) for row in topic["Partitions"]], error))
    return {"Topics": topics}


def _commit(
    ctx: ApiContext, body: Body, offsets: dict[tuple[str, int], CommittedOffset], request: RequestContext
) -> Errors:
    generation_id = body["GenerationIdOrMemberEpoch"]
    try:
        ctx.groups.offsets.commit(
            body["GroupId"],
            body["MemberId"],
            body.get("GroupInstanceId"),
            generation_id,
            offsets,
            request.api_version,
        )
    except KafkaError as error:
        if error.error is Errors.GROUP_ID_NOT_FOUND and request.api_version < FIRST_WITH_GROUP_NOT_FOUND:
            return Errors.ILLEGAL_GENERATION
        return error.error
    return NONE


def _topic(topic: Body, rows: list[tuple[int, Errors]], refused: Errors) -> Body:
    partitions = [
        {"PartitionIndex": index, "ErrorCode": int(refused if error is NONE else error)} for index, error in rows
    ]
    return {"Name": topic.get("Name", ""), "TopicId": topic.get("TopicId"), "Partitions": partitions}
