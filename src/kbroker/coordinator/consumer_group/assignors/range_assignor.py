"""The assignor ``range``: each member gets a range of each subscribed topic, in the order of the member ids.

Source: ``RangeAssignor``.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from kbroker.common.java.java_text import utf16_key
from kbroker.coordinator.consumer_group.assignors.group_spec import GroupSpec
from kbroker.coordinator.consumer_group.member import Target

NAME = "range"


def assign(group: GroupSpec) -> Mapping[str, Target]:
    """Return the target of each member. Static members come first, by instance id, and so keep their ranges."""
    members = group.members

    def order(member_id: str) -> tuple[bool, bytes]:
        instance_id = members[member_id].instance_id
        return instance_id is None, utf16_key(member_id if instance_id is None else instance_id)

    member_ids = sorted(group.member_ids(), key=order)
    subscribers: dict[UUID, int] = {}
    for member in members.values():
        for topic_id in member.topics:
            subscribers[topic_id] = subscribers.get(topic_id, 0) + 1
    quotas = {topic_id: divmod(group.partition_counts[topic_id], count) for topic_id, count in subscribers.items()}
    served = dict.fromkeys(subscribers, 0)
    targets: dict[str, Target] = {}
    for member_id in member_ids:
        target: dict[UUID, frozenset[int]] = {}
        for topic_id in members[member_id].topics:
            quota, extra = quotas[topic_id]
            number = served[topic_id]
            served[topic_id] = number + 1
            start = quota * number + min(number, extra)
            end = start + quota + (number < extra)
            if start < end:
                target[topic_id] = frozenset(range(start, end))
        targets[member_id] = target
    return targets
