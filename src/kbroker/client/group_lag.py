"""Offsets and lag of groups of any kind, by partition; of many groups with few requests."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from kbroker.client.cluster import shared_version
from kbroker.client.coordinators import find_group_coordinators
from kbroker.client.groups import (
    FIRST_WITH_GROUPS,
    NAMED_TOPICS_MAX_VERSION,
    OFFSET_FETCH,
    SHARE,
    CommittedOffset,
    Groups,
    committed_offsets,
)
from kbroker.client.share_offsets import ShareOffset, share_offsets
from kbroker.common.errors import KafkaError
from kbroker.common.topic_names import TopicPartition


class PartitionLag(NamedTuple):
    """One partition of a group; values are None where they are not known.

    ``offset``: the committed offset; in a share group, the first offset that is not delivered completely. ``lag``: in a
    share group, without the completed records after ``offset``.
    """

    topic: str
    partition: int
    offset: int | None
    end: int | None
    lag: int | None
    metadata: str | None

    @property
    def place(self) -> TopicPartition:
        """Topic and partition."""
        return self.topic, self.partition


def partition_lags(
    groups: Groups, group_id: str, group_type: str, further: Collection[TopicPartition] = ()
) -> list[PartitionLag]:
    """Return the partitions of a group with an offset, and ``further`` ones, in order. Raises: as ``Groups``."""
    if group_type == SHARE:
        shared = share_offsets(groups, group_id)
        ends = groups.end_offsets(shared.keys() | set(further))
        return [_shared(place, shared.get(place), ends) for place in sorted(shared.keys() | set(further))]
    committed = groups.committed(group_id)
    return _of_committed(committed, set(further), groups.end_offsets(committed.keys() | set(further)))


def lags_of(groups: Groups, group_types: Mapping[str, str]) -> dict[str, list[PartitionLag]]:
    """Return the partitions of several groups, with few requests; groups that cannot be read now are left out.

    Args: ``group_types``: by group id.
    Raises: as ``Groups``.
    """
    committed: dict[str, dict[TopicPartition, CommittedOffset]] = {}
    shared: dict[str, Mapping[TopicPartition, ShareOffset]] = {}
    plain = [group_id for group_id, group_type in group_types.items() if group_type != SHARE]
    for node_id, group_ids in find_group_coordinators(groups.cluster, plain).items():
        committed.update(_committed_of(groups, node_id, group_ids))
    for group_id, group_type in group_types.items():
        if group_type == SHARE:
            with suppress(KafkaError):  # the group was just deleted, or its partition is being loaded
                shared[group_id] = share_offsets(groups, group_id)
    ends = groups.end_offsets({place for offsets in (*committed.values(), *shared.values()) for place in offsets})
    found = {group_id: _of_committed(offsets, set(), ends) for group_id, offsets in committed.items()}
    for group_id, offsets in shared.items():
        found[group_id] = [_shared(place, offset, ends) for place, offset in sorted(offsets.items())]
    return found


def total_lag(lags: Sequence[PartitionLag]) -> int | None:
    """Return the sum over the partitions with a known lag; None without any."""
    known = [max(0, one.lag) for one in lags if one.lag is not None]
    return sum(known) if known else None


def _committed_of(
    groups: Groups, node_id: int, group_ids: Sequence[str]
) -> dict[str, dict[TopicPartition, CommittedOffset]]:
    """Return the committed offsets of groups with the same coordinator, without those that it cannot read now."""
    cluster = groups.cluster
    if shared_version(cluster.connection_to(node_id), OFFSET_FETCH, NAMED_TOPICS_MAX_VERSION) < FIRST_WITH_GROUPS:
        found = {}
        for group_id in group_ids:
            with suppress(KafkaError):
                found[group_id] = groups.committed(group_id)
        return found
    body = {"Groups": [{"GroupId": group_id, "Topics": None} for group_id in group_ids]}
    response = cluster.request(OFFSET_FETCH, body, node_id=node_id, max_version=NAMED_TOPICS_MAX_VERSION)
    return {row["GroupId"]: committed_offsets(row) for row in response["Groups"] if not row["ErrorCode"]}


def _of_committed(
    committed: Mapping[TopicPartition, CommittedOffset],
    further: Collection[TopicPartition],
    ends: Mapping[TopicPartition, int],
) -> list[PartitionLag]:
    rows = []
    for place in sorted({*committed, *further}):
        at, end = committed.get(place), ends.get(place)
        offset = None if at is None else at.offset
        lag = None if offset is None or end is None else end - offset
        rows.append(PartitionLag(*place, offset, end, lag, None if at is None else at.metadata))
    return rows


def _shared(place: TopicPartition, found: ShareOffset | None, ends: Mapping[TopicPartition, int]) -> PartitionLag:
    offset, lag = (None, None) if found is None else (found.offset, found.lag)
    return PartitionLag(*place, offset, ends.get(place), lag, None)
