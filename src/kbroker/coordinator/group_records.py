"""Records of ``__consumer_offsets`` in Kafka's formats: Kafka's tools and kbroker can read each other's.

Keys and values begin with an int16 version. The version of a key is its kind: 0 and 1 a committed offset, 2 a classic
group; higher versions belong to the newer group types.
Source: ``OffsetCommitKey.json``, ``OffsetCommitValue.json``, ``GroupMetadataKey.json``, ``GroupMetadataValue.json``.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple
from uuid import UUID

from kbroker.metadata.topics import ZERO_ID
from kbroker.protocol import codec

OFFSET_COMMIT_KEY_VERSIONS = (0, 1)
GROUP_METADATA_KEY_VERSION = 2
OFFSET_VALUE_VERSION = 4
OFFSET_VALUE_VERSION_WITH_EXPIRY = 1  # the only version with an expiry, without leader epoch and topic id

NO_TIMESTAMP = -1
LONGEST_CACHED = 255  # length of the longest group id whose keys are cached


class OffsetKey(NamedTuple):
    """Key of a committed offset."""

    group_id: str
    topic: str
    partition: int


class GroupKey(NamedTuple):
    """Key of a classic group."""

    group_id: str


class CommittedOffset(NamedTuple):
    """One committed offset.

    ``expire_timestamp_ms``: set by old clients only, else -1; ``topic_id``: the zero id if it is not known.
    """

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int = NO_TIMESTAMP
    topic_id: UUID = ZERO_ID

    def is_of(self, topic_id: UUID) -> bool:
        """Return whether the offset is of this topic, and not of a deleted one with the same name."""
        return self.topic_id in (topic_id, ZERO_ID)


def offset_key(group_id: str, topic: str, partition: int) -> bytes:
    """Encode the key of a committed offset. Most are cached: a consumer commits the same partitions repeatedly."""
    if len(group_id) > LONGEST_CACHED:
        return _encode_offset_key(group_id, topic, partition)
    return _offset_key(group_id, topic, partition)


def _encode_offset_key(group_id: str, topic: str, partition: int) -> bytes:
    return codec.encode_versioned("OffsetCommitKey", 1, {"Group": group_id, "Topic": topic, "Partition": partition})


_offset_key = lru_cache(maxsize=4096)(_encode_offset_key)


def group_key(group_id: str) -> bytes:
    """Encode the key of a classic group."""
    return codec.encode_versioned("GroupMetadataKey", GROUP_METADATA_KEY_VERSION, {"Group": group_id})


def decode_key(key: bytes) -> OffsetKey | GroupKey | None:
    """Decode a key; return None for a kind that does not belong to classic groups.

    Raises: ProtocolError if the key is truncated or malformed.
    """
    version = codec.key_version(key)
    if version in OFFSET_COMMIT_KEY_VERSIONS:
        body = codec.decode_versioned("OffsetCommitKey", key)[1]
        return OffsetKey(body["Group"], body["Topic"], body["Partition"])
    if version == GROUP_METADATA_KEY_VERSION:
        return GroupKey(codec.decode_versioned("GroupMetadataKey", key)[1]["Group"])
    return None


def encode_offset(value: CommittedOffset) -> bytes:
    """Encode the value of a committed offset."""
    version = OFFSET_VALUE_VERSION if value.expire_timestamp_ms < 0 else OFFSET_VALUE_VERSION_WITH_EXPIRY
    body = {
        "Offset": value.offset,
        "LeaderEpoch": value.leader_epoch,
        "Metadata": value.metadata,
        "CommitTimestamp": value.commit_timestamp_ms,
        "ExpireTimestamp": value.expire_timestamp_ms,
        "TopicId": value.topic_id,
    }
    return codec.encode_versioned("OffsetCommitValue", version, body)


def decode_offset(value: bytes) -> CommittedOffset:
    """Decode the value of a committed offset. Raises: ProtocolError."""
    body = codec.decode_versioned("OffsetCommitValue", value)[1]
    return CommittedOffset(
        body["Offset"],
        body.get("LeaderEpoch", -1),
        body["Metadata"],
        body["CommitTimestamp"],
        body.get("ExpireTimestamp", NO_TIMESTAMP),
        body.get("TopicId", ZERO_ID),
    )
