"""Start offsets and lags of share groups of any Kafka cluster (KIP-932)."""

from collections.abc import Mapping
from dataclasses import dataclass

from kbroker.client.cluster import check, failure_of, retried
from kbroker.client.groups import Groups
from kbroker.client.partitions import partition_rows, topic_rows
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.topic_names import TopicPartition

DESCRIBE_SHARE_GROUP_OFFSETS, ALTER_SHARE_GROUP_OFFSETS = 90, 91


@dataclass(frozen=True, slots=True)
class ShareOffset:
    """The first offset whose delivery in a share group is not complete, and the lag; None: not known yet."""

    offset: int | None
    lag: int | None


@retried
def share_offsets(groups: Groups, group_id: str) -> dict[TopicPartition, ShareOffset]:
    """Return the offsets of all initialized partitions of a share group. Raises: as ``Groups``."""
    body = {"Groups": [{"GroupId": group_id, "Topics": None}]}
    (row,) = groups.ask(group_id, DESCRIBE_SHARE_GROUP_OFFSETS, body)["Groups"]
    check(row["ErrorCode"], f"group {group_id!r}", row["ErrorMessage"])
    found = {}
    for place, one in partition_rows(row["Topics"], "TopicName"):
        check(one["ErrorCode"], f"partition {place[0]}-{place[1]}", one["ErrorMessage"])
        found[place] = ShareOffset(_known(one["StartOffset"]), _known(one.get("Lag", -1)))
    return found


def alter_share_offsets(groups: Groups, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Set start offsets of a share group without members, which is created if it does not exist.

    Raises: as ``Groups``; KafkaError NON_EMPTY_GROUP; offsets of other partitions may have been set.
    """
    rows = ((tp[0], {"PartitionIndex": tp[1], "StartOffset": at}) for tp, at in sorted(offsets.items()))
    topics = topic_rows(rows, "TopicName")

    def attempt() -> KafkaError | None:
        response = groups.ask(group_id, ALTER_SHARE_GROUP_OFFSETS, {"GroupId": group_id, "Topics": topics})
        check(response["ErrorCode"], f"group {group_id!r}", response["ErrorMessage"])
        for (topic, partition), one in partition_rows(response["Responses"], "TopicName"):
            what = f"group {group_id!r}, partition {topic}-{partition}"
            if one["ErrorCode"] == Errors.UNKNOWN_TOPIC_OR_PARTITION:  # it was just listed: deleted since
                return failure_of(one["ErrorCode"], what, one["ErrorMessage"])
            check(one["ErrorCode"], what, one["ErrorMessage"])
        return None

    failure = groups.cluster.retry(attempt) if topics else None
    if failure is not None:
        raise failure


def _known(number: int) -> int | None:
    return None if number < 0 else number
