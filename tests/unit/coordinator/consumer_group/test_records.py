"""Records of consumer groups, byte for byte as from Apache Kafka 4.3.1."""

from uuid import UUID

import pytest

from kbroker.common.errors import ProtocolError
from kbroker.coordinator.consumer_group import records
from kbroker.coordinator.consumer_group.group import ConsumerGroup
from kbroker.coordinator.consumer_group.member import ClassicMetadata, ClassicProtocol, ConsumerGroupMember, MemberState
from kbroker.coordinator.consumer_group.records import FORMATS, RECORDS, CurrentAssignment, ResolvedRegex
from kbroker.coordinator.modern_group.records import (
    GroupEpoch,
    GroupRecord,
    RecordKey,
    decode_key,
    decode_value,
    tombstone,
)
from tests.support.consumer_groups import ConsumerGroupBench
from tests.support.record_bytes import assert_bytes

TOPIC = UUID("8ec5a5e5-8c0f-4ec6-9e6f-6d2b4d0fd39c")
MEMBER = ConsumerGroupMember(
    "m",
    instance_id="i",
    rack_id=None,
    rebalance_timeout_ms=60_000,
    client_id="c",
    client_host="/127.0.0.1",
    topic_names=frozenset({"da"}),
    topic_regex="",
)
CLASSIC = MEMBER._replace(classic=ClassicMetadata(10_000, (ClassicProtocol("range", b"\1\2"),)))
HAS = CurrentAssignment(3, 2, MemberState.UNREVOKED_PARTITIONS, {TOPIC: {0: 2, 1: 3}}, {TOPIC: {2: 2}})

CASES = [
    (RECORDS.epoch("g", GroupEpoch(2, 0)), "000300" + "0167", "0000" + "00000002" + "00"),
    (RECORDS.epoch("g", GroupEpoch(2, -2)), "0003000167", "0000" + "00000002" + "01" + "0008" + "fffffffffffffffe"),
    (
        RECORDS.member("g", MEMBER),
        "0005" + "000167" + "00016d",
        "0000" + "0269" + "00" + "0263" + "0b2f3132372e302e302e31" + "02036461" + "01" + "0000ea60" + "00" + "01000100",
    ),
    (
        RECORDS.member("g", CLASSIC),
        "0005" + "000167" + "00016d",
        "0000" + "0269" + "00" + "0263" + "0b2f3132372e302e302e31" + "02036461" + "01" + "0000ea60" + "00" + "01"
        "0011" + "01" + "00002710" + "02" + "0672616e6765" + "030102" + "00" + "00",
    ),
    (RECORDS.target_epoch("g", 2, 0), "0006000167", "0000" + "00000002" + "00"),
    (
        RECORDS.target("g", "m", {TOPIC: frozenset({0, 1})}),
        "0007" + "000167" + "00016d",
        "0000" + "02" + TOPIC.hex + "03" + "00000000" + "00000001" + "00" + "00",
    ),
    (
        GroupRecord(RecordKey(records.CURRENT_ASSIGNMENT, "g", "m"), HAS),
        "0008" + "000167" + "00016d",
        "0000" + "00000003" + "00000002" + "01"
        "02" + TOPIC.hex + "03" + "00000000" + "00000001" + "01" + "0009" + "03" + "00000002" + "00000003"
        "02" + TOPIC.hex + "02" + "00000002" + "01" + "0005" + "02" + "00000002" + "00",
    ),
    (
        records.regex_record("g", "d.*", ResolvedRegex(frozenset({"db", "da"}), 7, 8)),
        "0010" + "000167" + "0003642e2a",
        "0000" + "03" + "036461" + "036462" + "0000000000000007" + "0000000000000008" + "00",
    ),
    (tombstone(records.PARTITION_METADATA, "g"), "0004000167", None),
]  # fmt: skip


@pytest.mark.parametrize(("record", "key", "value"), CASES)
def test_bytes(record: GroupRecord, key: str, value: str | None) -> None:
    assert_bytes(record, FORMATS, key, value)


def test_an_assignment_before_its_member() -> None:
    """Compaction keeps a member's latest records, which may be in the other order."""
    bench = ConsumerGroupBench()
    bench.join("m")
    group = bench.coordinator._groups.find("g")
    assert isinstance(group, ConsumerGroup)
    member = group.members["m"]
    for record in RECORDS.member_tombstones("g", "m"):
        group.replay(record)
    assert not group.members
    group.replay(GroupRecord(RecordKey(records.CURRENT_ASSIGNMENT, "g", "m"), RECORDS.assignment_of(member)))
    group.replay(RECORDS.member("g", member))
    assert group.members == {"m": member}


def test_partitions_of_older_records_count_from_the_members_epoch() -> None:
    """Records before 4.3 have no partition epochs; the epoch of an absent static member is 0."""
    row = "02" + TOPIC.hex + "02" + "00000005" + "00"
    for member_epoch, expected in ((4, 4), (-2, 0)):
        data = bytes.fromhex(
            "0000" + member_epoch.to_bytes(4, "big", signed=True).hex() + "00000003" + "00" + row + "0100"
        )
        key = RecordKey(records.CURRENT_ASSIGNMENT, "g", "m")
        value = decode_value(key, data, FORMATS)
        assert isinstance(value, CurrentAssignment)
        assert value.assigned == {TOPIC: {5: expected}}


def test_states_of_later_releases_are_unknown() -> None:
    key = RecordKey(records.CURRENT_ASSIGNMENT, "g", "m")
    value = decode_value(key, bytes.fromhex("0000" + "00000004" + "00000003" + "09" + "010100"), FORMATS)
    assert isinstance(value, CurrentAssignment)
    assert value.state is MemberState.UNKNOWN


def test_other_kinds_and_broken_keys() -> None:
    assert decode_key(b"\0\2\0\1g", FORMATS) is None
    with pytest.raises(ProtocolError):
        decode_key(b"\0", FORMATS)
    with pytest.raises(ProtocolError):
        decode_key(b"\0\3\0\5g", FORMATS)
