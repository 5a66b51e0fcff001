"""Records of ``__share_group_state`` in Kafka's formats: Kafka's tools and kbroker can read each other's.

A key begins with the number of its kind: 0 a snapshot of a share partition's state (or the tombstone of the share
partition), 1 an update, which changes the state of the records before it.
Source: ``ShareSnapshotValue.json``, ``ShareUpdateValue.json``, ``ShareCoordinatorRecordHelpers``, ``ShareGroupOffset``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from kbroker.common.java.java_values import parse_long, trim
from kbroker.coordinator.share.persister import UNINITIALIZED_OFFSET, UNKNOWN_COUNT, StateBatch
from kbroker.coordinator.share.state_batches import combine
from kbroker.log.checkpoints import uuid_to_text
from kbroker.protocol import codec

SNAPSHOT, UPDATE = 0, 1
_UUID = re.compile(r"[A-Za-z0-9_-]{22}(?:==)?")
#: Fields of the values in the order of ``SharePartitionState`` and ``ShareUpdate``, which have the batches after them.
_UPDATE_FIELDS = ("SnapshotEpoch", "LeaderEpoch", "StartOffset", "DeliveryCompleteCount")
_SNAPSHOT_FIELDS = ("SnapshotEpoch", "StateEpoch", *_UPDATE_FIELDS[1:], "CreateTimestamp", "WriteTimestamp")
_NAMES = {SNAPSHOT: "ShareSnapshot", UPDATE: "ShareUpdate"}


class SharePartitionKey(NamedTuple):
    """A partition of a topic, as a share group reads it."""

    group_id: str
    topic_id: UUID
    partition: int

    @property
    def text(self) -> str:
        """The text whose hash selects the partition of ``__share_group_state``."""
        return f"{self.group_id}:{uuid_to_text(self.topic_id)}:{self.partition}"


def is_key_text(text: str) -> bool:
    """Return whether a text is group:topic id:partition. Source: ``SharePartitionKey.validate``."""
    words = text.rstrip(":").split(":")
    if len(words) < 3 or not trim(":".join(words[:-2])) or _UUID.fullmatch(words[-2]) is None:
        return False
    number = parse_long(words[-1])
    return number is not None and -(2**31) <= number < 2**31


class SharePartitionState(NamedTuple):
    """State of a share partition. ``snapshot_epoch``: number of its latest snapshot. Source: ``ShareGroupOffset``."""

    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    create_ms: int
    write_ms: int
    batches: Sequence[StateBatch] = ()

    def updated(self, update: ShareUpdate) -> SharePartitionState:
        """Return the state after an update."""
        start = self.start_offset if update.start_offset == UNINITIALIZED_OFFSET else update.start_offset
        return self._replace(
            leader_epoch=self.leader_epoch if update.leader_epoch == -1 else update.leader_epoch,
            start_offset=start,
            delivery_complete_count=update.delivery_complete_count,
            batches=combine((*self.batches, *update.batches), start),
        )


class ShareUpdate(NamedTuple):
    """Change of a share partition's state. ``start_offset``: -1 if it does not change."""

    snapshot_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: Sequence[StateBatch]


def initial_state(state_epoch: int, start_offset: int, snapshot_epoch: int, now_ms: int) -> SharePartitionState:
    """Return the state that the initialization of a share partition writes."""
    count = UNKNOWN_COUNT if start_offset == UNINITIALIZED_OFFSET else 0
    return SharePartitionState(snapshot_epoch, state_epoch, 0, start_offset, count, now_ms, now_ms)


def encode_key(kind: int, key: SharePartitionKey) -> bytes:
    """Encode a key. Raises: ProtocolError for a group id that is too long."""
    body = {"GroupId": key.group_id, "TopicId": key.topic_id, "Partition": key.partition}
    return codec.encode_versioned(_NAMES[kind] + "Key", kind, body)


def encode_snapshot(state: SharePartitionState) -> bytes:
    """Encode the value of a snapshot."""
    return _encode("ShareSnapshotValue", _SNAPSHOT_FIELDS, state)


def encode_update(update: ShareUpdate) -> bytes:
    """Encode the value of an update."""
    return _encode("ShareUpdateValue", _UPDATE_FIELDS, update)


def _encode(name: str, fields: Sequence[str], value: SharePartitionState | ShareUpdate) -> bytes:
    *numbers, batches = value
    return codec.encode_versioned(
        name, 0, {**dict(zip(fields, numbers, strict=True)), "StateBatches": batch_rows(batches)}
    )


def decode_key(key: bytes) -> tuple[int, SharePartitionKey] | None:
    """Return the kind of a record and its share partition; None for an unknown kind. Raises: ProtocolError."""
    kind = codec.key_version(key)
    if kind not in _NAMES:
        return None
    body = codec.decode_versioned(_NAMES[kind] + "Key", key)[1]
    return kind, SharePartitionKey(body["GroupId"], body["TopicId"], body["Partition"])


def decode_snapshot(value: bytes) -> SharePartitionState:
    """Decode the value of a snapshot. Raises: ProtocolError."""
    return SharePartitionState(*_decoded("ShareSnapshotValue", _SNAPSHOT_FIELDS, value))


def decode_update(value: bytes) -> ShareUpdate:
    """Decode the value of an update. Raises: ProtocolError."""
    return ShareUpdate(*_decoded("ShareUpdateValue", _UPDATE_FIELDS, value))


def _decoded(name: str, fields: Sequence[str], value: bytes) -> Iterator[Any]:
    body = codec.decode_versioned(name, value)[1]
    yield from (body[field] for field in fields)
    yield batches_of(body["StateBatches"])


def batch_rows(batches: Sequence[StateBatch]) -> list[dict[str, Any]]:
    """Return batches as they are in records, requests and responses."""
    return [
        {"FirstOffset": first, "LastOffset": last, "DeliveryState": state, "DeliveryCount": count}
        for first, last, state, count in batches
    ]


def batches_of(rows: Sequence[dict[str, Any]]) -> tuple[StateBatch, ...]:
    """Return the batches of a record, a request or a response."""
    return tuple(
        StateBatch(row["FirstOffset"], row["LastOffset"], row["DeliveryState"], row["DeliveryCount"]) for row in rows
    )
