"""WriteShareGroupState: changes the state of share partitions."""

from __future__ import annotations

from kbroker.apis.share_state_requests import each_partition, failure
from kbroker.coordinator.share.persister import UNKNOWN_COUNT, StateChange
from kbroker.coordinator.share.share_coordinator import ShareCoordinator
from kbroker.coordinator.share.share_records import SharePartitionKey, batches_of
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.security.authorizer import checks

__all__ = ["failure", "handle"]


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Change the state of each partition."""
    return each_partition(ctx, body, request, checks.WRITE_SHARE_GROUP_STATE, _write)


def _write(coordinator: ShareCoordinator, key: SharePartitionKey, row: Body) -> None:
    epochs = row["StateEpoch"], row["LeaderEpoch"]
    count = row.get("DeliveryCompleteCount", UNKNOWN_COUNT)
    coordinator.write(key, StateChange(*epochs, row["StartOffset"], count, batches_of(row["StateBatches"])))
