"""CreatePartitions: adds partitions to topics."""

from __future__ import annotations

from collections import Counter

from kbroker.common.errors import Errors, KafkaError
from kbroker.metadata.topic_rules import FEW_PARTITIONS
from kbroker.quota.mutation_quota import MutationQuota
from kbroker.requests.context import ApiContext, Body, LongWork, RequestContext
from kbroker.security.authorizer import checks

STRICT_FROM = 3  # first version whose clients support error 89
WITHOUT_TEXT = (Errors.UNKNOWN_TOPIC_OR_PARTITION, Errors.THROTTLING_QUOTA_EXCEEDED)


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body | LongWork:
    """Grow each topic separately; a duplicate topic gets INVALID_REQUEST once, and is unchanged.

    More than FEW_PARTITIONS in all are long work, unless they are only checked.
    """
    if not body["ValidateOnly"] and sum(max(row["Count"], 0) for row in body["Topics"]) > FEW_PARTITIONS:
        return _grow_all
    return _grow_all(ctx, body, request)


def _grow_all(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    wanted = {row["Name"]: row for row in body["Topics"]}
    times = Counter(row["Name"] for row in body["Topics"])
    once = [name for name in wanted if times[name] == 1]
    allowed = ctx.auth.allowed(request, checks.CREATE_PARTITIONS, once)
    quota = ctx.mutation_quota(request, request.api_version >= STRICT_FROM)
    responses = []
    for name, row in wanted.items():
        if times[name] > 1:
            responses.append(_response(name, Errors.INVALID_REQUEST, "Duplicate topic name."))
        elif name not in allowed:
            responses.append(_response(name, checks.CREATE_PARTITIONS.error, None))
        else:
            responses.append(_grow(ctx, row, body["ValidateOnly"], quota))
    return {"ThrottleTimeMs": quota.throttle_time_ms, "Results": responses}


def failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """Return every topic with the same error."""
    return {"Results": [_response(row["Name"], error, error.message) for row in body["Topics"]]}


def _grow(ctx: ApiContext, row: Body, validate_only: bool, quota: MutationQuota) -> Body:
    assignments = row["Assignments"]
    brokers = None if assignments is None else [one["BrokerIds"] for one in assignments]
    try:
        ctx.topics.add_partitions(row["Name"], row["Count"], brokers, validate_only, quota.record)
    except KafkaError as error:
        return _response(row["Name"], error.error, None if error.error in WITHOUT_TEXT else error.message)
    return _response(row["Name"], Errors.NONE, None)


def _response(name: str, error: Errors, message: str | None) -> Body:
    return {"Name": name, "ErrorCode": int(error), "ErrorMessage": message}
