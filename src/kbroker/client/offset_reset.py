"""New offsets for a group, by the rules of Kafka's `kafka-consumer-groups --reset-offsets`.

Source: OffsetsUtils.java of Kafka 4.3; checked against its tool in tests/integration/test_cli_groups.py.
"""

import enum
from collections.abc import Iterable, Mapping

from kbroker.client.admin import EARLIEST, LATEST, Admin
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.topic_names import TopicPartition


class ResetTo(enum.Enum):
    """A rule; the last three need a number."""

    EARLIEST = "earliest"
    LATEST = "latest"
    CURRENT = "current"
    OFFSET = "offset"
    SHIFT_BY = "shift-by"
    TIMESTAMP = "timestamp"


def plan_reset(
    admin: Admin,
    committed: Mapping[TopicPartition, int],
    partitions: Iterable[TopicPartition],
    to: ResetTo,
    value: int = 0,
) -> dict[TopicPartition, int]:
    """Return the new offset of each partition, without changing anything.

    Args:
        admin: provides the ends of partitions, and offsets by time.
        committed: committed offsets of the group.
        partitions: the partitions to reset.
        to: the rule. EARLIEST and LATEST are the ends of the partition. CURRENT is the committed offset, LATEST without
            one. OFFSET is `value` itself, SHIFT_BY the committed offset plus `value`, both limited to the ends.
            TIMESTAMP is the first record at or after `value` ms, LATEST without one.
        value: the number of the rule.

    Raises: KafkaError UNKNOWN_TOPIC_OR_PARTITION for a partition that does not exist, INVALID_REQUEST for SHIFT_BY
        without a committed offset.
    """
    wanted = sorted(set(partitions))
    if to is ResetTo.EARLIEST:
        return _ask(admin, wanted, EARLIEST)
    if to is ResetTo.LATEST:
        return _ask(admin, wanted, LATEST)
    if to is ResetTo.CURRENT:
        kept = {tp: committed[tp] for tp in wanted if tp in committed}
        return kept | _ask(admin, [tp for tp in wanted if tp not in committed], LATEST)
    if to is ResetTo.TIMESTAMP:
        found = _ask(admin, wanted, value)
        return found | _ask(admin, [tp for tp, offset in found.items() if offset < 0], LATEST)
    if to is ResetTo.SHIFT_BY:
        for topic, partition in wanted:
            if (topic, partition) not in committed:
                message = f"partition {topic}-{partition}: expected a committed offset to shift, found none"
                raise KafkaError(Errors.INVALID_REQUEST, message)
        return keep_between_ends(admin, {tp: committed[tp] + value for tp in wanted})
    return keep_between_ends(admin, dict.fromkeys(wanted, value))


def keep_between_ends(admin: Admin, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Return the offsets limited to the log start offset and the end offset of each partition."""
    starts, ends = _ask(admin, offsets, EARLIEST), _ask(admin, offsets, LATEST)
    return {tp: max(starts[tp], min(ends[tp], offset)) for tp, offset in offsets.items()}


def _ask(admin: Admin, partitions: Iterable[TopicPartition], timestamp: int) -> dict[TopicPartition, int]:
    wanted = dict.fromkeys(partitions, timestamp)
    return {tp: found.offset for tp, found in admin.list_offsets(wanted).items()} if wanted else {}
