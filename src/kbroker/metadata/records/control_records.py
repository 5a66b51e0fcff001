"""Control records of the metadata log and of its snapshots (KIP-595, KIP-630, KIP-853).

A key consists of its version and the record's type. Source: ``ControlRecordType``, ``ControlRecordUtils``.
"""

import struct
import uuid
from typing import TYPE_CHECKING, NamedTuple

from kbroker.common.errors import ProtocolError
from kbroker.metadata.records.metadata_record import UnknownRecordError
from kbroker.protocol.codec import decode_data, encode_data
from kbroker.protocol.control_types import (
    KRAFT_VERSION,
    KRAFT_VOTERS,
    LEADER_CHANGE,
    SNAPSHOT_FOOTER,
    SNAPSHOT_HEADER,
    VALUE_TABLES,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from kbroker.protocol.codec import Body

_KEY = struct.Struct(">hh")
_VERSION = 0  # of every key and value that Kafka 4.3 writes, and the only one that it reads


class LeaderChange(NamedTuple):
    """The first record of a leader epoch; ``granting_voters`` elected the leader."""

    leader_id: int
    voters: tuple[int, ...]
    granting_voters: tuple[int, ...]


class SnapshotHeader(NamedTuple):
    """The first record of a snapshot; the time is that of the last log record that it contains, 0 if unknown."""

    last_contained_log_timestamp_ms: int = 0


class SnapshotFooter(NamedTuple):
    """The last record of a snapshot."""


class KRaftVersion(NamedTuple):
    """The finalized level of the feature kraft.version."""

    level: int


class VoterEndpoint(NamedTuple):
    """Address of a voter on one of its controller listeners."""

    listener: str
    host: str
    port: int


class Voter(NamedTuple):
    """A voter of the quorum, and the levels of kraft.version that it supports."""

    id: int
    directory_id: uuid.UUID
    endpoints: tuple[VoterEndpoint, ...]
    min_kraft_version: int
    max_kraft_version: int


class Voters(NamedTuple):
    """The voters of a quorum with kraft.version 1."""

    voters: tuple[Voter, ...]


ControlRecord = LeaderChange | SnapshotHeader | SnapshotFooter | KRaftVersion | Voters


def encode_control(record: ControlRecord) -> tuple[bytes, bytes]:
    """Encode a control record as the key and the value of a record of a control batch.

    Raises: ProtocolError: a field that does not fit.
    """
    number, body = _encoded(record)
    return _KEY.pack(_VERSION, number), encode_data(VALUE_TABLES[number], _VERSION, {"Version": _VERSION, **body})


def _encoded(record: ControlRecord) -> "tuple[int, Body]":
    """Return the type and the body."""
    if isinstance(record, LeaderChange):
        leader_id, *voters = record
        elected, granting = ([{"VoterId": voter} for voter in ids] for ids in voters)
        return LEADER_CHANGE, {"LeaderId": leader_id, "Voters": elected, "GrantingVoters": granting}
    if isinstance(record, SnapshotHeader):
        return SNAPSHOT_HEADER, {"LastContainedLogTimestamp": record.last_contained_log_timestamp_ms}
    if isinstance(record, SnapshotFooter):
        return SNAPSHOT_FOOTER, {}
    if isinstance(record, KRaftVersion):
        return KRAFT_VERSION, {"KRaftVersion": record.level}
    return KRAFT_VOTERS, {"Voters": [_voter_body(voter) for voter in record.voters]}


def _voter_body(voter: Voter) -> "Body":
    return {
        "VoterId": voter.id,
        "VoterDirectoryId": voter.directory_id,
        "Endpoints": [{"Name": e.listener, "Host": e.host, "Port": e.port} for e in voter.endpoints],
        "KRaftVersionFeature": {
            "MinSupportedVersion": voter.min_kraft_version,
            "MaxSupportedVersion": voter.max_kraft_version,
        },
    }


def _leader_change(body: "Body") -> LeaderChange:
    voters, granting = (tuple(v["VoterId"] for v in body[name]) for name in ("Voters", "GrantingVoters"))
    return LeaderChange(body["LeaderId"], voters, granting)


def _voters(body: "Body") -> Voters:
    return Voters(tuple(_voter(voter) for voter in body["Voters"]))


def _voter(body: "Body") -> Voter:
    endpoints = tuple(VoterEndpoint(e["Name"], e["Host"], e["Port"]) for e in body["Endpoints"])
    levels = body["KRaftVersionFeature"]
    return Voter(
        body["VoterId"],
        body["VoterDirectoryId"],
        endpoints,
        levels["MinSupportedVersion"],
        levels["MaxSupportedVersion"],
    )


_DECODERS: "dict[int, Callable[[Body], ControlRecord]]" = {
    LEADER_CHANGE: _leader_change,
    SNAPSHOT_HEADER: lambda body: SnapshotHeader(body["LastContainedLogTimestamp"]),
    SNAPSHOT_FOOTER: lambda _: SnapshotFooter(),
    KRAFT_VERSION: lambda body: KRaftVersion(body["KRaftVersion"]),
    KRAFT_VOTERS: _voters,
}


def decode_control(key: bytes | None, value: bytes | None) -> ControlRecord:
    """Decode the key and the value of a record of a control batch.

    Raises: UnknownRecordError: a type that is not supported. ProtocolError: bytes that are not such a record.
    """
    if key is None or len(key) < _KEY.size:
        found = "null" if key is None else f"{len(key)} bytes"
        raise ProtocolError(f"key of a control record: expected {_KEY.size} bytes, found {found}")
    number: int = _KEY.unpack_from(key)[1]
    decoded = _DECODERS.get(number)
    if decoded is None:
        raise UnknownRecordError(
            f"a control record of the metadata log has type {number}, supported are {min(_DECODERS)} to "
            f"{max(_DECODERS)}: use a version of kbroker that supports the metadata.version of this log"
        )
    return decoded(decode_data(VALUE_TABLES[number], _VERSION, value or b""))
