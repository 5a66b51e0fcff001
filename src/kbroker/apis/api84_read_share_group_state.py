"""ReadShareGroupState: the state of share partitions, for the leader of the partition."""

from __future__ import annotations

from kbroker.apis.share_state_requests import each_partition, failure
from kbroker.coordinator.share.share_coordinator import ShareCoordinator
from kbroker.coordinator.share.share_records import SharePartitionKey, batch_rows
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.security.authorizer import checks

__all__ = ["failure", "handle"]


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Read each partition; a higher leader epoch is stored."""
    return each_partition(ctx, body, request, checks.READ_SHARE_GROUP_STATE, _read)


def _read(coordinator: ShareCoordinator, key: SharePartitionKey, row: Body) -> Body:
    found = coordinator.read(key, row["LeaderEpoch"])
    return {
        "StateEpoch": found.state_epoch,
        "StartOffset": found.start_offset,
        "StateBatches": batch_rows(found.batches),
    }
