"""New offsets for a group of any kind, by the rules of Kafka's `kafka-consumer-groups --reset-offsets`.

Source: OffsetsUtils.java of Kafka 4.3; checked against its tool in tests/integration/against_kafka/test_cli_groups.py.
"""

import csv
import enum
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import NamedTuple

from kbroker.client.admin import EARLIEST, LATEST, Admin
from kbroker.client.cluster import Cluster
from kbroker.client.groups import SHARE, Groups
from kbroker.client.share_offsets import alter_share_offsets, share_offsets
from kbroker.common.errors import Errors, KafkaError, ignoring
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
    if to is ResetTo.CURRENT:
        kept = {tp: committed[tp] for tp in wanted if tp in committed}
        return kept | admin.offsets_at(tp for tp in wanted if tp not in committed)
    if to in (ResetTo.EARLIEST, ResetTo.LATEST, ResetTo.TIMESTAMP):
        return admin.offsets_at(wanted, {ResetTo.EARLIEST: EARLIEST, ResetTo.LATEST: LATEST}.get(to, value))
    if to is ResetTo.SHIFT_BY:
        for topic, partition in wanted:
            if (topic, partition) not in committed:
                message = f"partition {topic}-{partition}: expected a committed offset to shift, found none"
                raise KafkaError(Errors.INVALID_REQUEST, message)
        return keep_between_ends(admin, {tp: committed[tp] + value for tp in wanted})
    return keep_between_ends(admin, dict.fromkeys(wanted, value))


def keep_between_ends(admin: Admin, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Return the offsets limited to the log start offset and the end offset of each partition."""
    starts, ends = admin.offsets_at(offsets, EARLIEST), admin.offsets_at(offsets)
    return {tp: max(starts[tp], min(ends[tp], offset)) for tp, offset in offsets.items()}


# ---------------------------------------------------------------- one group

Offsets = dict[TopicPartition, int]
Selection = dict[str, list[int] | None]  # partitions by topic; None: all of the topic


class GroupReset(NamedTuple):
    """New offsets of a group without members; ``before``: the current ones."""

    group_id: str
    is_share: bool
    before: Offsets
    after: Offsets

    def apply(self, groups: Groups) -> None:
        """Set the new offsets. Raises: KafkaError; offsets of other partitions may have been set."""
        if self.is_share:
            alter_share_offsets(groups, self.group_id, self.after)
        else:
            groups.commit(self.group_id, self.after)

    def applied(self, groups: Groups) -> "GroupReset":
        """Return the part of the new offsets that the group has now. Raises: KafkaError."""
        now = _offsets_of(groups, self.group_id, self.is_share)
        return self._replace(after={tp: offset for tp, offset in self.after.items() if now.get(tp) == offset})


def plan_group_reset(
    groups: Groups,
    group_id: str,
    selection: Selection,
    to: ResetTo,
    value: int = 0,
    *,
    exact: Mapping[TopicPartition, int] | None = None,
    makes_share_group: bool = False,
) -> GroupReset:
    """Return the new offsets of a group, without changing anything.

    Args:
        groups: groups of the cluster.
        group_id: the group, which may not exist yet.
        selection: the partitions to reset; all with an offset if empty.
        to, value: the rule, as for `plan_reset`.
        exact: offsets that take the place of selection and rule, limited to the ends.
        makes_share_group: a group that does not exist becomes a share group.

    Raises: KafkaError, such as NON_EMPTY_GROUP if the group has members, UNKNOWN_TOPIC_OR_PARTITION.
    """
    kind = _inactive_kind(groups, group_id)
    is_share = kind == SHARE or (kind is None and makes_share_group)
    before = _offsets_of(groups, group_id, is_share)
    admin = Admin(groups.cluster)
    if exact is not None:
        return GroupReset(group_id, is_share, before, keep_between_ends(admin, exact))
    places = [place for topic, indexes in selection.items() for place in _places(groups.cluster, topic, indexes)]
    return GroupReset(group_id, is_share, before, plan_reset(admin, before, places or before, to, value))


def _offsets_of(groups: Groups, group_id: str, is_share: bool) -> Offsets:
    if is_share:
        known = share_offsets(groups, group_id)
        return {tp: found.offset for tp, found in known.items() if found.offset is not None}
    return {tp: found.offset for tp, found in groups.committed(group_id).items()}


def _places(cluster: Cluster, topic: str, indexes: list[int] | None) -> list[TopicPartition]:
    """Return the partitions of a topic, or the named ones, which must exist. Raises: KafkaError."""
    known = [p.partition for p in cluster.topic(topic).partitions]
    for index in indexes or ():
        if index not in known:
            message = f"topic {topic!r}: expected a partition from 0 to {len(known) - 1}, got {index}"
            raise KafkaError(Errors.UNKNOWN_TOPIC_OR_PARTITION, message)
    return [(topic, index) for index in (known if indexes is None else indexes)]


def _inactive_kind(groups: Groups, group_id: str) -> str | None:
    """Return the type of a group, None if it does not exist. Raises: KafkaError NON_EMPTY_GROUP."""
    with ignoring(Errors.GROUP_ID_NOT_FOUND):
        found = groups.describe(group_id)
        if found.is_active:
            message = f"group {group_id!r}: expected no members, found state {found.state}; stop its consumers first"
            raise KafkaError(Errors.NON_EMPTY_GROUP, message)
        return found.group_type
    return None  # a group may be given its offsets before it first reads


# ---------------------------------------------------------------- texts and files that people write


def topic_partitions(words: Iterable[str]) -> Selection:
    """Return `TOPIC` or `TOPIC:0,1` words as a selection. Raises: ValueError."""
    found: Selection = {}
    for word in words:
        topic, colon, listed = word.partition(":")
        indexes = listed.split(",")
        if not topic or (colon and not all(map(_is_number, indexes))):
            raise ValueError(f"expected TOPIC or TOPIC:0,1,..., got {word!r}")
        before = found.get(topic, [])
        if not colon or before is None:
            found[topic] = None
        else:
            found[topic] = sorted({*before, *map(int, indexes)})
    return found


def parse_offsets(lines: Iterable[str], group_ids: Sequence[str]) -> dict[str, Offsets]:
    """Return offsets by group of CSV rows `group,topic,partition,offset`, without the group if just one is named.

    Raises: ValueError with the number of the line.
    """
    found: dict[str, Offsets] = {}
    reader = csv.reader(lines)
    try:
        rows = list(reader)
    except csv.Error as error:
        raise ValueError(f"line {reader.line_num}: {error}") from None
    for number, cells in enumerate(rows, 1):
        row = [cell.strip() for cell in cells]
        if not any(row):
            continue
        if len(row) == 3 and len(group_ids) == 1:
            row.insert(0, group_ids[0])
        if len(row) != 4 or not (_is_number(row[2]) and _is_number(row[3])):
            shorter = "topic,partition,offset or " if len(group_ids) == 1 else ""
            raise ValueError(f"line {number}: expected {shorter}group,topic,partition,offset, got {','.join(cells)!r}")
        found.setdefault(row[0], {})[row[1], int(row[2])] = int(row[3])
    return found


def datetime_ms(text: str) -> int:
    """Return an ISO 8601 time in ms since 1970, at least 0; UTC by default, as in Kafka's tool. Raises: ValueError."""
    # Python 3.10 reads fractions of three or six digits and offsets with a colon only
    given = re.sub(r"([-+]\d\d)(\d\d)$", r"\1:\2", text.strip().replace("Z", "+00:00"))
    given = re.sub(r"\.(\d{1,6})\d*", lambda found: f".{found[1]:0<6}", given)
    try:
        time = datetime.fromisoformat(given)
    except ValueError:
        raise ValueError(f"expected a time such as 2026-01-31T12:00:00, got {text!r}") from None
    found = (time if time.tzinfo else time.replace(tzinfo=timezone.utc)) - datetime(1970, 1, 1, tzinfo=timezone.utc)
    return max(0, found.days * 86_400_000 + found.seconds * 1000 + found.microseconds // 1000)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()
