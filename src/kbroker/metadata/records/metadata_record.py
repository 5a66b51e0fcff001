"""Records of the metadata log (KIP-631) and the form of their values.

A value consists of the frame version 1, the record's type and its version, all three unsigned varints, and the record
as a flexible message. Source: ``MetadataRecordSerde``, ``AbstractApiMessageSerde``, ``MetadataVersion``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kbroker.common.errors import ProtocolError
from kbroker.common.feature_versions import (
    CORDONED_LEVEL,
    DIRECTORIES_LEVEL,
    ELIGIBLE_REPLICAS_LEVEL,
    LAST_STABLE_LEVEL,
    ZK_MIGRATION_LEVEL,
)
from kbroker.protocol._decoder import decode_from
from kbroker.protocol._encoder import encode
from kbroker.protocol.schema import data_plan, data_versions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Buffer

    from kbroker.protocol._encoder import Plan
    from kbroker.protocol.codec import Body

RECORD_TYPES: Mapping[int, str] = {
    0: "RegisterBrokerRecord",
    1: "UnregisterBrokerRecord",
    2: "TopicRecord",
    3: "PartitionRecord",
    4: "ConfigRecord",
    5: "PartitionChangeRecord",
    7: "FenceBrokerRecord",
    8: "UnfenceBrokerRecord",
    9: "RemoveTopicRecord",
    10: "DelegationTokenRecord",
    11: "UserScramCredentialRecord",
    12: "FeatureLevelRecord",
    14: "ClientQuotaRecord",
    15: "ProducerIdsRecord",
    17: "BrokerRegistrationChangeRecord",
    18: "AccessControlEntryRecord",
    19: "RemoveAccessControlEntryRecord",
    20: "NoOpRecord",
    21: "ZkMigrationStateRecord",
    22: "RemoveUserScramCredentialRecord",
    23: "BeginTransactionRecord",
    24: "EndTransactionRecord",
    25: "AbortTransactionRecord",
    26: "RemoveDelegationTokenRecord",
    27: "RegisterControllerRecord",
    28: "ClearElrRecord",
}
TRANSACTION_RECORDS = BEGIN, END, ABORT = RECORD_TYPES[23], RECORD_TYPES[24], RECORD_TYPES[25]
_TYPES = {name: number for number, name in RECORD_TYPES.items()}

_FRAME_VERSION = 1
_MAX_NUMBER = 0x7FFF  # largest type, and largest version
_NEWER = "use a version of kbroker that supports the metadata.version of this log"
# Version of a record from a level of metadata.version on, the highest level first. The other records have version 0,
# except BrokerRegistrationChangeRecord, whose version depends on the change.
_VERSIONS_BY_LEVEL: Mapping[str, tuple[tuple[int, int], ...]] = {
    "RegisterBrokerRecord": ((CORDONED_LEVEL, 4), (DIRECTORIES_LEVEL, 3), (ZK_MIGRATION_LEVEL, 2), (0, 1)),
    "PartitionRecord": ((ELIGIBLE_REPLICAS_LEVEL, 2), (DIRECTORIES_LEVEL, 1)),
    "PartitionChangeRecord": ((ELIGIBLE_REPLICAS_LEVEL, 2), (DIRECTORIES_LEVEL, 1)),
}
_REGISTRATION_CHANGE = "BrokerRegistrationChangeRecord"


class UnknownRecordError(ValueError):
    """A record of a frame version, a type or a version that this broker does not support."""


class MetadataRecord(NamedTuple):
    """A record of the metadata log. ``name``: Kafka's, such as ``TopicRecord``.

    A decoded ``body`` has every field of the table; a field that the version lacks or that is absent has its default.
    """

    name: str
    version: int
    body: Body


def metadata_record(name: str, body: Body, level: int = LAST_STABLE_LEVEL) -> MetadataRecord:
    """Return a record in the version that Kafka writes at `level` of metadata.version.

    Fields that this version lacks must have their default, or be missing.
    """
    if name == _REGISTRATION_CHANGE:
        return MetadataRecord(name, _registration_change_version(body), body)
    for first, version in _VERSIONS_BY_LEVEL.get(name, ()):
        if level >= first:
            return MetadataRecord(name, version, body)
    return MetadataRecord(name, 0, body)


def _registration_change_version(body: Body) -> int:
    """Return the first version with all fields of a change: Kafka writes no higher one at any level."""
    if body.get("CordonedLogDirs") is not None:
        return 3
    if body.get("LogDirs"):
        return 2
    return 1 if body.get("InControlledShutdown") else 0


# Caches: each combination of type and version is looked up once.
_encoders: dict[tuple[str, int], tuple[Plan, bytes]] = {}
_decoders: dict[bytes, tuple[str, int, Plan]] = {}  # by the first three varints, each nearly always one byte


def encode_record(record: MetadataRecord) -> bytes:
    """Encode a record as the value of a record of a batch.

    Raises: UnknownRecordError: a name or a version that is not supported. ProtocolError: a body that the version cannot
    carry.
    """
    name, version, body = record
    found = _encoders.get((name, version)) or _encoder(name, version)
    return encode(found[0], body, found[1])


def _encoder(name: str, version: int) -> tuple[Plan, bytes]:
    number = _TYPES.get(name)
    if number is None:
        raise UnknownRecordError(f"{name} is not a record of the metadata log")
    plan = _plan(name, version)
    prefix = bytes((_FRAME_VERSION, number, version))  # all below 128
    return _encoders.setdefault((name, version), (plan, prefix))


def decode_record(value: Buffer) -> MetadataRecord:
    """Decode the value of a record of a batch.

    Raises: UnknownRecordError: a frame version, a type or a version that is not supported. ProtocolError: bytes that
    are not such a record.
    """
    data = value if isinstance(value, bytes) else bytes(value)
    found = _decoders.get(data[:3])
    at = 3
    if found is None:
        found, at = _decoder(data)
    name, version, plan = found
    body, end = decode_from(plan, data, at)
    if end != len(data):
        raise ProtocolError(f"{name}: expected {end} bytes, found {len(data)}")
    return MetadataRecord(name, version, body)


def _decoder(data: bytes) -> tuple[tuple[str, int, Plan], int]:
    frame, at = _number(data, 0, "frame version")
    if frame != _FRAME_VERSION:
        raise UnknownRecordError(
            f"a metadata record has frame version {frame}, supported is {_FRAME_VERSION}: "
            f"read this metadata log with the version of Kafka that wrote it"
        )
    number, at = _number(data, at, "type")
    version, at = _number(data, at, "version")
    name = RECORD_TYPES.get(number)
    if name is None:
        raise UnknownRecordError(
            f"a metadata record has type {number}, supported are {', '.join(map(str, RECORD_TYPES))}: {_NEWER}"
        )
    found = (name, version, _plan(name, version))
    if at == 3:
        _decoders[data[:3]] = found
    return found, at


def _plan(name: str, version: int) -> Plan:
    first, last = data_versions(name)
    if not first <= version <= last:
        supported = f"{first}" if first == last else f"{first} to {last}"
        raise UnknownRecordError(f"{name} has version {version}, supported is {supported}: {_NEWER}")
    return data_plan(name, version)


def _number(data: bytes, at: int, field: str) -> tuple[int, int]:
    """Return an unsigned varint and the position after it. Raises: ProtocolError."""
    number = shift = 0
    for position in range(at, min(at + 5, len(data))):
        number |= (data[position] & 0x7F) << shift
        shift += 7
        if data[position] < 0x80:
            if number > _MAX_NUMBER:
                raise ProtocolError(f"{field} of a metadata record: {number} is above {_MAX_NUMBER}")
            return number, position + 1
    raise ProtocolError(f"{field} of a metadata record: malformed varint at byte {at} of {len(data)}")
