"""Differences from Apache Kafka that histories meet: deliberate ones, and values that Kafka does not determine.

Requests that are left out for the same reason name it where they are drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from kbroker.common.errors import Errors
from kbroker.coordinator.streams_group.internal_topics import Status
from kbroker.protocol.schema import api_by_name
from tests.support.histories.steps import Body

TELEMETRY = [api_by_name(name).key for name in ("GetTelemetrySubscriptions", "PushTelemetry")]
TASKS = ("ActiveTasks", "StandbyTasks", "WarmupTasks")


class Difference(NamedTuple):
    """Deliberate difference of a response.

    Args:
        place: passage of docs/compatibility.md that describes the difference and its reason.
        fields: that may differ; none: the whole response. errors: Kafka's and kbroker's, None without a response.
        is_met: condition of the request, Kafka's response and kbroker's.
    """

    api: str
    place: str
    fields: tuple[str, ...]
    errors: tuple[int | None, int]
    is_met: Callable[[Body, Body, Body], bool]


def _has_wrong_state(kbroker: Body, field: str) -> bool:
    rows = [row for topic in kbroker["Responses"] for row in topic["Partitions"]]
    return any(row[field] == Errors.INVALID_RECORD_STATE for row in rows)


DELIBERATE = (
    *(
        Difference(
            api, "A JoinGroup or SyncGroup of a member whose earlier one still waits",
            (), (None, Errors.REBALANCE_IN_PROGRESS), lambda request, kafka, kbroker: request["MemberId"] != "",
        )
        for api in ("JoinGroup", "SyncGroup")
    ),
    Difference(
        "JoinGroup", "A member id that was given without a group instance id",
        (), (Errors.UNKNOWN_SERVER_ERROR, Errors.UNKNOWN_MEMBER_ID),
        lambda request, kafka, kbroker: kafka["MemberId"] == "" and request["GroupInstanceId"] is not None,
    ),
    Difference(
        "ConsumerGroupHeartbeat", "A consumer of the newer protocol that joins a classic group",
        (), (Errors.UNKNOWN_SERVER_ERROR, Errors.NONE), lambda request, kafka, kbroker: request["MemberEpoch"] == 0,
    ),
    Difference(
        "StreamsGroupHeartbeat", "A member of a streams group that reports fewer tasks than it has",
        TASKS, (Errors.NONE, Errors.NONE),
        lambda request, kafka, kbroker: kafka["ActiveTasks"] is None
        and request.get("ActiveTasks") not in (None, kbroker["ActiveTasks"]),
    ),
    Difference(
        "StreamsGroupHeartbeat", "A member of a streams group with an address for interactive queries",
        (), (Errors.UNKNOWN_SERVER_ERROR, Errors.NONE),
        lambda request, kafka, kbroker: not {row["StatusCode"] for row in kbroker["Status"] or ()}.isdisjoint(
            (Status.MISSING_SOURCE_TOPICS, Status.INCORRECTLY_PARTITIONED_TOPICS)
        ),
    ),
    Difference(
        "ShareFetch", "Share groups", (), (Errors.UNKNOWN_SERVER_ERROR, Errors.NONE),
        lambda request, kafka, kbroker: _has_wrong_state(kbroker, "AcknowledgeErrorCode"),
    ),
    Difference(
        "ShareAcknowledge", "Share groups", (), (Errors.UNKNOWN_SERVER_ERROR, Errors.NONE),
        lambda request, kafka, kbroker: _has_wrong_state(kbroker, "ErrorCode"),
    ),
)  # fmt: skip


def adapted(api: str, request: Body, kafka: Body | None, kbroker: Body) -> Body | None:
    """Return Kafka's response with kbroker's values where they differ deliberately."""
    errors = kafka and kafka.get("ErrorCode"), kbroker.get("ErrorCode")
    for one in DELIBERATE:
        if (one.api, one.errors) == (api, errors) and one.is_met(request, kafka or {}, kbroker):
            return {**(kafka or {}), **{name: kbroker[name] for name in one.fields}} if one.fields else kbroker
    return kafka


def comparable(api: str, value: Any) -> Any:
    """Return a response without the parts that Kafka does not determine or offers only with a plug-in.

    The partitions of members of share groups become numbers of partitions: Kafka chooses these partitions in the order
    of a hash map whose keys contain topic ids, which are random. The APIs of client telemetry are left out. Kafka puts
    partitions that it cannot read at the end of a Fetch response, which may name a topic twice.
    """
    if api == "ApiVersions":
        return {**value, "ApiKeys": [row for row in value["ApiKeys"] if row["ApiKey"] not in TELEMETRY]}
    if api == "Fetch" and isinstance(value, dict):
        topics: dict[Any, Body] = {}
        for row in value["Responses"]:
            topic = topics.setdefault(row.get("TopicId", row.get("Topic")), {**row, "Partitions": []})
            topic["Partitions"] += row["Partitions"]
        return {**value, "Responses": list(topics.values())}
    if not api.startswith("ShareGroup") or not isinstance(value, dict | list):
        return value
    if isinstance(value, list):
        return [comparable(api, each) for each in value]
    rows = value.get("TopicPartitions", ())
    counted = {"TopicPartitions": sum(len(row["Partitions"]) for row in rows)} if rows else {}
    return {name: comparable(api, each) for name, each in value.items()} | counted
