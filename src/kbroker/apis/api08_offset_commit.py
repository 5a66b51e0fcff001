"""OffsetCommit: stores the offsets that a group has read."""

from __future__ import annotations

from kbroker.common.errors import Errors, KafkaError
from kbroker.common.java.java_text import java_length
from kbroker.coordinator.group_records import NO_TIMESTAMP, CommittedOffset
from kbroker.metadata.topics import TopicView
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.requests.rows import TopicRows, merged_topics, partition_row
from kbroker.security.authorizer import checks

FIRST_WITH_IDS = 10
NO_RETENTION_TIME = -1
LATEST_MS = 2**63 - 1
NONE = Errors.NONE


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Commit the valid offsets; each partition has its own code. From v10 topics have ids.

    An error of the group takes precedence over metadata that is too long. The response leaves out an existing topic
    that the request names without partitions. Raises: KafkaError if the client may not commit to the group.
    """
    ctx.auth.require(request, checks.OFFSET_COMMIT_GROUP, body["GroupId"])
    by_id = request.api_version >= FIRST_WITH_IDS
    now_ms = ctx.clock.wall_ms()
    retention_ms = body.get("RetentionTimeMs", NO_RETENTION_TIME)
    expires_ms = NO_TIMESTAMP if retention_ms == NO_RETENTION_TIME else min(max(0, now_ms + retention_ms), LATEST_MS)
    topics: list[tuple[Body, TopicView | None, str]] = []
    for topic in body["Topics"]:
        view = ctx.topics.get_by_id(topic["TopicId"]) if by_id else ctx.topics.get(topic["Name"])
        topics.append((topic, view, view.name if view is not None else "" if by_id else topic["Name"]))
    allowed = ctx.auth.allowed(request, checks.OFFSET_COMMIT, [name for _, _, name in topics if name or not by_id])
    offsets: dict[tuple[str, int], CommittedOffset] = {}
    refused: TopicRows = []
    passed: list[tuple[Body, list[tuple[int, Errors]]]] = []
    for topic, view, name in topics:
        key = {"Name": topic.get("Name", ""), "TopicId": topic.get("TopicId")}
        if view is None or name not in allowed:
            error = Errors.UNKNOWN_TOPIC_OR_PARTITION
            if view is None and by_id:
                error = Errors.UNKNOWN_TOPIC_ID
            elif name not in allowed:
                error = checks.OFFSET_COMMIT.error
            refused.append((key, [partition_row(row["PartitionIndex"], error) for row in topic["Partitions"]]))
            continue
        rows: list[tuple[int, Errors]] = []
        unknown: list[Body] = []
        for row in topic["Partitions"]:
            index = row["PartitionIndex"]
            metadata = row["CommittedMetadata"] or ""
            if not 0 <= index < len(view.partitions):
                unknown.append(partition_row(index, Errors.UNKNOWN_TOPIC_OR_PARTITION))
            elif metadata and java_length(metadata) > ctx.config.integer("offset.metadata.max.bytes"):
                rows.append((index, Errors.OFFSET_METADATA_TOO_LARGE))  # in Java's characters, not in bytes
            else:
                epoch = row.get("CommittedLeaderEpoch", -1)
                offsets[name, index] = CommittedOffset(
                    row["CommittedOffset"], epoch, metadata, now_ms, expires_ms, view.topic_id
                )
                rows.append((index, NONE))
        if unknown:
            refused.append((key, unknown))
        if rows:
            passed.append((key, rows))
    refusal = NONE
    if passed:
        member = body["MemberId"], body.get("GroupInstanceId"), body["GenerationIdOrMemberEpoch"]
        try:
            ctx.groups.offsets.commit(body["GroupId"], *member, offsets, request.api_version)
        except KafkaError as error_of_all:
            refusal = error_of_all.error
    committed = [
        (key, [partition_row(index, error if refusal is NONE else refusal) for index, error in rows])
        for key, rows in passed
    ]
    return {"Topics": merged_topics(refused, committed)}


def failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """Return every partition with the same error."""
    topics = []
    for topic in body["Topics"]:
        rows = [partition_row(row["PartitionIndex"], error) for row in topic["Partitions"]]
        topics.append({"Name": topic.get("Name", ""), "TopicId": topic.get("TopicId"), "Partitions": rows})
    return {"Topics": topics}
