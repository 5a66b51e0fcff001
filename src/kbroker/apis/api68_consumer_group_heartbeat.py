"""ConsumerGroupHeartbeat: a member joins, subscribes, reports its partitions, and leaves (KIP-848)."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from kbroker.apis.group_heartbeats import accepted, check_texts, invalid
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.feature_versions import GROUP_VERSION
from kbroker.coordinator.consumer_group.membership import HeartbeatRequest
from kbroker.coordinator.consumer_group.regexes import Visible
from kbroker.coordinator.modern_group.member import JOIN_EPOCH, LEAVE_EPOCH, STATIC_LEAVE_EPOCH
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.requests.rows import error_fields
from kbroker.security.authorizer import checks

FIRST_WITH_CLIENTS_MEMBER_ID = 1


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Check the request, then pass it to the coordinator of groups. Errors have a text."""
    if ctx.features.level(GROUP_VERSION) < 1 or not ctx.groups.consumer_groups.settings.is_enabled:
        raise KafkaError(Errors.UNSUPPORTED_VERSION)
    groups = ctx.groups.consumer_groups
    try:
        ctx.auth.require(request, checks.CONSUMER_GROUP_HEARTBEAT_GROUP, body["GroupId"])
        if body["SubscribedTopicNames"]:
            names = set(body["SubscribedTopicNames"])
            if len(ctx.auth.allowed(request, checks.CONSUMER_GROUP_HEARTBEAT, names)) < len(names):
                raise KafkaError(checks.CONSUMER_GROUP_HEARTBEAT.error)
        _check(body, request.api_version, groups.settings.assignors)
        partitions = body["TopicPartitions"]
        result = groups.heartbeat(
            HeartbeatRequest(
                body["GroupId"],
                body["MemberId"],
                body["MemberEpoch"],
                body["InstanceId"],
                body["RackId"],
                body["RebalanceTimeoutMs"],
                body["SubscribedTopicNames"],
                body.get("SubscribedTopicRegex"),
                body["ServerAssignor"],
                None if partitions is None else _by_topic(partitions),
                request.client_id,
                f"/{request.client_host}",
                _visible(ctx, request),
            )
        )
    except KafkaError as error:
        return error_fields(error)
    assignment = None
    if result.assigned is not None:
        rows = [{"TopicId": topic_id, "Partitions": list(epochs)} for topic_id, epochs in result.assigned.items()]
        assignment = {"TopicPartitions": rows}
    return {**accepted(result), "Assignment": assignment}


def _by_topic(rows: list[Body]) -> dict[UUID, list[int]]:
    """Return the partitions of each topic, from all rows with that topic."""
    found: dict[UUID, list[int]] = {}
    for row in rows:
        found.setdefault(row["TopicId"], []).extend(row["Partitions"])
    return found


def _visible(ctx: ApiContext, request: RequestContext) -> Visible | None:
    """Return the authorizer's check for topics that match a regular expression, made after the response, or None."""
    if ctx.auth.authorizer is None:
        return None
    client = request._replace(completion=None, inbound=None)  # both end with the request
    return lambda names: ctx.auth.allowed(client, checks.CONSUMER_GROUP_HEARTBEAT_REGEX, names)


def _check(body: Body, version: int, known: Sequence[str]) -> None:
    """Check the request. Raises: KafkaError INVALID_REQUEST, UNSUPPORTED_ASSIGNOR, in Kafka's order and words.

    Args: ``known``: the assignors that a member may select.
    """
    epoch = body["MemberEpoch"]
    if version >= FIRST_WITH_CLIENTS_MEMBER_ID or epoch > 0 or epoch == LEAVE_EPOCH:
        check_texts(body, "MemberId")
    check_texts(body, "GroupId", "InstanceId", "RackId")
    if epoch == JOIN_EPOCH:
        if body["RebalanceTimeoutMs"] == -1:
            raise invalid("RebalanceTimeoutMs must be provided in first request.")
        if body["TopicPartitions"] is None or body["TopicPartitions"]:
            raise invalid("TopicPartitions must be empty when (re-)joining.")
        if body["SubscribedTopicNames"] is None and body.get("SubscribedTopicRegex") is None:
            raise invalid("Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.")
    elif epoch == STATIC_LEAVE_EPOCH:
        if body["InstanceId"] is None:
            raise invalid("InstanceId can't be null.")
    elif epoch < STATIC_LEAVE_EPOCH:
        raise invalid("MemberEpoch is invalid.")
    assignor = body["ServerAssignor"]
    if assignor is not None and assignor not in known:
        text = f"ServerAssignor {assignor} is not supported. Supported assignors: {', '.join(known)}."
        raise KafkaError(Errors.UNSUPPORTED_ASSIGNOR, text)
