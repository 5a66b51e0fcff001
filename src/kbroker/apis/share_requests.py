"""Parts of ShareFetch and ShareAcknowledge: checks of the request, acknowledgements, rows of the responses."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any
from uuid import UUID

from kbroker.apis.share_group_requests import MAX_MEMBER_ID_LENGTH, are_enabled
from kbroker.common.errors import Errors, KafkaError
from kbroker.requests.cluster import current_leader, endpoint_rows, live_nodes
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.security.authorizer.checks import Check
from kbroker.share.in_flight import AcknowledgeType
from kbroker.share.sessions import SharedPartition
from kbroker.share.share_partition import AcknowledgementBatch
from kbroker.share.share_partition_manager import Outcomes

RENEW_VERSION = 2
NO_TEXT = ""  # text of a partition's error whose message is null

#: Error of each place, None for a success.
Acknowledged = dict[SharedPartition, KafkaError | None]


def check_request(ctx: ApiContext, body: Body, request: RequestContext, check: Check) -> None:
    """Check feature, group, permission and member. Raises: KafkaError for the whole request."""
    if not are_enabled(ctx):
        raise KafkaError(Errors.UNSUPPORTED_VERSION)
    if body["GroupId"] is None:
        raise KafkaError(Errors.INVALID_REQUEST, "Invalid group id in the request.")
    ctx.auth.require(request, check, body["GroupId"])
    if not body["MemberId"] or len(body["MemberId"]) > MAX_MEMBER_ID_LENGTH:
        raise KafkaError(Errors.INVALID_REQUEST, "Invalid member id in the request.")


def failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """Return the error of a whole request, without a text, as Kafka does."""
    return {"ErrorCode": int(error)}


def named(ctx: ApiContext, places: Iterable[tuple[UUID, int]]) -> list[SharedPartition]:
    """Return partitions with the names of their topics."""
    views = ((topic_id, index, ctx.topics.get_by_id(topic_id)) for topic_id, index in places)
    return [SharedPartition(one, index, None if view is None else view.name) for one, index, view in views]


def requested(ctx: ApiContext, topics: Iterable[Body]) -> dict[SharedPartition, list[AcknowledgementBatch]]:
    """Return the acknowledgements of a request by partition."""
    rows = [(topic["TopicId"], row) for topic in topics for row in topic["Partitions"]]
    places = named(ctx, ((topic_id, row["PartitionIndex"]) for topic_id, row in rows))
    return {
        place: [
            AcknowledgementBatch(one["FirstOffset"], one["LastOffset"], one["AcknowledgeTypes"])
            for one in row["AcknowledgementBatches"] or ()
        ]
        for place, (_, row) in zip(places, rows, strict=True)
    }


def exists(ctx: ApiContext, place: SharedPartition) -> bool:
    """Return whether the broker has the partition."""
    view = ctx.topics.get_by_id(place.topic_id)
    return view is not None and 0 <= place.partition < len(view.partitions)


def acknowledge(
    ctx: ApiContext,
    body: Body,
    request: RequestContext,
    acknowledgements: dict[SharedPartition, list[AcknowledgementBatch]],
    allowed: Collection[str],
    check: Check,
    done: Callable[[Acknowledged], None],
) -> None:
    """Acknowledge records; ``done`` gets the outcome of each partition."""
    refused: Acknowledged = {}
    empty: Acknowledged = {}
    good: dict[SharedPartition, list[AcknowledgementBatch]] = {}
    may_renew = request.api_version >= RENEW_VERSION
    for place, batches in acknowledgements.items():
        if place.topic is None:
            refused[place] = KafkaError(Errors.UNKNOWN_TOPIC_ID, NO_TEXT)
        elif not _are_valid(batches, may_renew=may_renew, is_renewal=may_renew and body["IsRenewAck"]):
            refused[place] = KafkaError(Errors.INVALID_REQUEST, NO_TEXT)
        elif place.topic not in allowed:
            refused[place] = KafkaError(check.error, NO_TEXT)
        elif not exists(ctx, place):
            refused[place] = KafkaError(Errors.UNKNOWN_TOPIC_OR_PARTITION, NO_TEXT)
        elif batches:
            good[place] = batches
        else:
            empty[place] = None
    if not good:
        done(refused)
        return

    def stored(outcomes: Outcomes) -> None:
        found = {(key.topic_id, key.partition): error for key, error in outcomes.items()}
        done({**{place: found[place.place] for place in good}, **refused, **empty})

    ctx.share_partitions.acknowledge(body["GroupId"], body["MemberId"], good, stored)


def _are_valid(batches: Iterable[AcknowledgementBatch], *, may_renew: bool, is_renewal: bool) -> bool:
    """Return whether batches are in order, and have types that the version of the request allows."""
    highest = AcknowledgeType.RENEW if may_renew else AcknowledgeType.REJECT
    previous = -1
    for first, last, types in batches:
        if first > last or first < previous or not types:
            return False
        if len(types) > 1 and last - first != len(types) - 1:
            return False
        if min(types) < 0 or max(types) > highest or (AcknowledgeType.RENEW in types and not is_renewal):
            return False
        previous = last
    return True


def by_topic(rows: Iterable[tuple[SharedPartition, Body]]) -> list[Body]:
    """Return the rows of partitions, below their topics."""
    topics: dict[UUID, list[Any]] = {}
    for place, row in rows:
        topics.setdefault(place.topic_id, []).append(row)
    return [{"TopicId": topic_id, "Partitions": found} for topic_id, found in topics.items()]


_OTHER_LEADER = frozenset({Errors.NOT_LEADER_OR_FOLLOWER, Errors.FENCED_LEADER_EPOCH})


def leaders(ctx: ApiContext, request: RequestContext, rows: Iterable[tuple[SharedPartition, Body]]) -> list[Body]:
    """Put the leader into rows whose error concerns it; return the endpoints of these leaders."""
    wanted: set[int] = set()
    for place, row in rows:
        if row["ErrorCode"] not in _OTHER_LEADER:
            continue
        view = ctx.topics.get_by_id(place.topic_id)
        leader, epoch = (-1, -1) if view is None else current_leader(ctx, view.name, place.partition)
        row["CurrentLeader"] = {"LeaderId": leader, "LeaderEpoch": epoch}
        wanted.add(leader)
    return endpoint_rows(live_nodes(ctx, request.listener), wanted) if wanted else []
