"""The subscriptions and assignments that members of the classic protocol exchange through their coordinator.

Source: ``ConsumerProtocol``, ``Utils.toConsumerProtocolAssignment``, ``Utils.toTopicPartitionMap``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from kbroker.common.errors import ProtocolError
from kbroker.coordinator.modern_group.topics_image import TopicsImage
from kbroker.protocol import codec

LATEST_VERSION = 3


class Subscription(NamedTuple):
    """Subscription of a member. ``owned``: by topic id; topics that do not exist are left out."""

    topics: Sequence[str]
    owned: Mapping[UUID, Sequence[int]]
    rack_id: str | None


def read_version(data: bytes) -> int:
    """Return the version of a subscription or an assignment, at most LATEST_VERSION. Raises: ProtocolError."""
    if len(data) < 2:
        raise ProtocolError("embedded consumer protocol without a version")
    version: int = struct.unpack_from(">h", data)[0]
    if version < 0:
        raise ProtocolError(f"unsupported version of the embedded consumer protocol: {version}")
    return min(version, LATEST_VERSION)


def read_subscription(data: bytes, image: TopicsImage) -> Subscription:
    """Decode a subscription; owned partitions of topics that do not exist are left out. Raises: ProtocolError."""
    body = codec.decode_versioned("ConsumerProtocolSubscription", data, read_as=read_version(data))[1]
    owned = _by_id(body.get("OwnedPartitions") or (), image)
    return Subscription(list(body["Topics"]), owned, body.get("RackId") or None)


def read_assignment(data: bytes, image: TopicsImage) -> tuple[dict[UUID, Sequence[int]], bytes]:
    """Return partitions by topic id, without topics that do not exist, and user data. Raises: ProtocolError."""
    body = codec.decode_versioned("ConsumerProtocolAssignment", data, read_as=read_version(data))[1]
    return _by_id(body["AssignedPartitions"], image), bytes(body["UserData"] or b"")


def write_assignment(partitions: Mapping[UUID, Iterable[int]], version: int, image: TopicsImage) -> bytes:
    """Encode an assignment; topics that do not exist are left out."""
    rows = [
        {"Topic": topic.name, "Partitions": sorted(indexes)}
        for topic_id, indexes in partitions.items()
        if (topic := image.get_by_id(topic_id)) is not None
    ]
    return codec.encode_versioned("ConsumerProtocolAssignment", version, {"AssignedPartitions": rows, "UserData": None})


def _by_id(rows: Iterable[Mapping[str, object]], image: TopicsImage) -> dict[UUID, Sequence[int]]:
    found: dict[UUID, Sequence[int]] = {}
    for row in rows:
        topic = image.get(str(row["Topic"]))
        if topic is not None:
            found[topic.topic_id] = list(row["Partitions"])  # type: ignore[call-overload]
    return found
