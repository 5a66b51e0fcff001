"""Records of the internal topics of coordinators as JSON, in the form of Kafka's tools.

Source: ``DumpLogSegments``, ``CoordinatorRecordJsonConverters``.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from kbroker.common.errors import ProtocolError
from kbroker.log.tools.message_json import message_json
from kbroker.protocol.codec import decode_versioned
from kbroker.protocol.schema import data_versions

DELETED = "<DELETE>"
_OF_GROUPS = (
    *("OffsetCommit", "GroupMetadata"),
    *(
        f"ConsumerGroup{name}"
        for name in (
            *("Metadata", "PartitionMetadata", "MemberMetadata", "TargetAssignmentMetadata", "TargetAssignmentMember"),
            *("CurrentMemberAssignment", "RegularExpression"),
        )
    ),
    *(
        f"ShareGroup{name}"
        for name in (
            *("MemberMetadata", "Metadata", "TargetAssignmentMetadata", "TargetAssignmentMember"),
            *("CurrentMemberAssignment", "StatePartitionMetadata"),
        )
    ),
    *(
        f"StreamsGroup{name}"
        for name in (
            *("Metadata", "MemberMetadata", "TargetAssignmentMetadata", "TargetAssignmentMember"),
            *("CurrentMemberAssignment", "Topology"),
        )
    ),
)
#: Names of the messages of each internal topic, without Key and Value, by the name of Kafka's option.
TOPICS: Mapping[str, Sequence[str]] = {
    "offsets": _OF_GROUPS,
    "transaction-log": ("TransactionLog",),
    "share-group-state": ("ShareSnapshot", "ShareUpdate"),
}


class RecordDecoder:
    """Decoder of the records of one internal topic. Args: ``topic``: one of ``TOPICS``."""

    def __init__(self, topic: str) -> None:
        self._names = {
            kind: name
            for name in TOPICS[topic]
            for kind in range(data_versions(name + "Key")[0], data_versions(name + "Key")[1] + 1)
        }

    def __call__(self, offset: int, key: bytes | None, value: bytes | None) -> dict[str, Any]:
        """Return key and payload of a record; a record that cannot be decoded has a sentence instead of its key."""
        try:
            if key is None or len(key) < 2:
                raise ProtocolError("the record has no key with a version")
            (kind,) = struct.unpack_from(">h", key)
            name = self._names.get(kind)
            if name is None:
                return {"key": f"Unknown record type {kind} at offset {offset}, skipping.", "payload": None}
            shown = {
                "type": str(kind),
                "data": message_json(name + "Key", kind, decode_versioned(name + "Key", key)[1]),
            }
            if value is None:
                return {"key": shown, "payload": DELETED}
            version, body = decode_versioned(name + "Value", value)
            data = message_json(name + "Value", version, body)
            return {"key": shown, "payload": {"version": str(version), "data": data}}
        except ProtocolError as error:
            return {"key": f"Error at offset {offset}, skipping. {error.message}", "payload": None}
