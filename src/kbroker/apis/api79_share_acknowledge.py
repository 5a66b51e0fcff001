"""ShareAcknowledge: acknowledgements of records that a member of a share group acquired (KIP-932)."""

from __future__ import annotations

from kbroker.apis.share_requests import (
    Acknowledged,
    acknowledge,
    by_topic,
    check_request,
    failure,
    leaders,
    requested,
)
from kbroker.common.errors import Errors, KafkaError
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.security.authorizer import checks
from kbroker.share.sessions import FINAL_EPOCH, INITIAL_EPOCH

__all__ = ["failure", "handle"]


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body | None:
    """Acknowledge, and respond once every partition's outcome is stored; the final epoch ends the session.

    Raises: KafkaError.
    """
    check_request(ctx, body, request, checks.SHARE_ACKNOWLEDGE_GROUP)
    group_id, member_id, epoch = body["GroupId"], body["MemberId"], body["ShareSessionEpoch"]
    manager = ctx.share_partitions
    if epoch == INITIAL_EPOCH:
        raise KafkaError(Errors.INVALID_SHARE_SESSION_EPOCH)
    manager.sessions.advance(group_id, member_id, epoch)
    acknowledgements = requested(ctx, body["Topics"])
    names = (place.topic for place in acknowledgements if place.topic is not None)
    allowed = ctx.auth.allowed(request, checks.SHARE_ACKNOWLEDGE, names)

    def respond(outcomes: Acknowledged) -> None:
        if epoch == FINAL_EPOCH:
            manager.release_member(group_id, member_id)
        found = [
            (
                place,
                {
                    "PartitionIndex": place.partition,
                    "ErrorCode": 0 if error is None else int(error.error),
                    "ErrorMessage": None if error is None else error.message or None,
                },
            )
            for place, error in outcomes.items()
        ]
        request.complete(
            {
                "AcquisitionLockTimeoutMs": manager.configs(group_id).record_lock_duration_ms,
                "NodeEndpoints": leaders(ctx, request, found),
                "Responses": by_topic(found),
            }
        )

    acknowledge(ctx, body, request, acknowledgements, allowed, checks.SHARE_ACKNOWLEDGE, respond)
    return None
