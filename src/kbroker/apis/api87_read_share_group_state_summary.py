"""ReadShareGroupStateSummary: start offsets and epochs of share partitions."""

from __future__ import annotations

from kbroker.apis.share_state_requests import each_partition, failure
from kbroker.coordinator.share.share_coordinator import ShareCoordinator
from kbroker.coordinator.share.share_records import SharePartitionKey
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.security.authorizer import checks

__all__ = ["failure", "handle"]


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Read each partition, without its batches."""
    return each_partition(ctx, body, request, checks.READ_SHARE_GROUP_STATE_SUMMARY, _read)


def _read(coordinator: ShareCoordinator, key: SharePartitionKey, row: Body) -> Body:
    found = coordinator.summary(key)
    return {
        "StateEpoch": found.state_epoch,
        "LeaderEpoch": found.leader_epoch,
        "StartOffset": found.start_offset,
        "DeliveryCompleteCount": found.delivery_complete_count,
    }
