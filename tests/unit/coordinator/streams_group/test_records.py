"""Records of streams groups, byte for byte as from Apache Kafka 4.3.1."""

import pytest

from kbroker.coordinator.modern_group.records import GroupRecord, decode_key, decode_value, encode, tombstone
from kbroker.coordinator.streams_group import records
from kbroker.coordinator.streams_group.member import Endpoint, MemberState, StreamsGroupMember
from kbroker.coordinator.streams_group.records import FORMATS, RECORDS, CurrentAssignment, GroupEpoch
from kbroker.coordinator.streams_group.tasks import AssignedTasks, TargetTasks
from kbroker.coordinator.streams_group.topology import StreamsTopology
from tests.support.record_bytes import assert_bytes
from tests.support.streams_groups import subtopology, tasks, topic, topology

MEMBER = StreamsGroupMember(
    "m",
    4,
    3,
    MemberState.UNREVOKED_TASKS,
    rack_id="r",
    client_id="c",
    client_host="/127.0.0.1",
    rebalance_timeout_ms=60_000,
    topology_epoch=1,
    process_id="p",
    endpoint=Endpoint("h", 65_535),
    client_tags=(("a", "b"), ("zone", "z")),
    assigned=AssignedTasks({"0": {0: 2, 1: 3}, "1": {5: 3}}, tasks({"0": [2, 4]}), {}),
    pending_revocation=AssignedTasks({"0": {7: 1}}, {}, tasks({"1": [3]})),
)
STORED = StreamsGroupMember("m")._replace(
    **{
        name: getattr(MEMBER, name)
        for name in (
            *("rack_id", "client_id", "client_host", "rebalance_timeout_ms", "topology_epoch", "process_id"),
            *("endpoint", "client_tags"),
        )
    }
)
PART = subtopology("0", ["s", "t"], ["c"], ["r"], [topic("q", 4)], [([0, 1], [0])])
PART["StateChangelogTopics"][0]["TopicConfigs"] = [{"Key": "k", "Value": "v"}]
PART["RepartitionSourceTopics"][0]["ReplicationFactor"] = 1
SHAPE = StreamsTopology.of(topology(PART, epoch=3))

CASES = [
    (
        RECORDS.member("g", MEMBER),
        "001300016700016d",
        "0000" + "00" + "0272" + "0263" + "0b2f3132372e302e302e31" + "0000ea60" + "00000001" + "0270"
        "01" + "0268ffff" + "00" + "03" + "0261" + "0262" + "00" + "057a6f6e65" + "027a" + "00" + "00",
    ),
    (
        RECORDS.member("g", StreamsGroupMember("m")),
        "001300016700016d",
        "0000" + "00" + "00" + "01" + "01" + "ffffffff" + "ffffffff" + "01" + "ff" + "01" + "00",
    ),
    (
        RECORDS.epoch("g", GroupEpoch(5, -2, 1, {"num.standby.replicas": "1"})),
        "0011000167",
        "0000" + "00000005" + "fffffffffffffffe" + "02" + "0004" + "00000001"
        "0119" + "02" + "156e756d2e7374616e6462792e7265706c69636173" + "0231" + "00",
    ),
    (
        RECORDS.epoch("g", GroupEpoch(5, 0, -1, {"num.standby.replicas": "0"})),
        "0011000167",
        "0000" + "00000005" + "0000000000000000" + "01"
        "0119" + "02" + "156e756d2e7374616e6462792e7265706c69636173" + "0230" + "00",
    ),
    (
        RECORDS.target("g", "m", TargetTasks(tasks({"1": [3, 1], "0": [0]}), tasks({"0": [2]}), {})),
        "001500016700016d",
        "0000" + "03" + "0230" + "0200000000" + "00" + "0231" + "030000000100000003" + "00"
        "02" + "0230" + "0200000002" + "00" + "01" + "00",
    ),
    (RECORDS.target_epoch("g", 5, 7), "0014000167", "0000" + "00000005" + "010008" + "0000000000000007"),
    (
        RECORDS.current("g", MEMBER),
        "001600016700016d",
        "0000" + "00000004" + "00000003" + "02"
        "03" + "0230" + "030000000000000001" + "010009" + "030000000200000003"
        "0231" + "0200000005" + "010005" + "0200000003" + "02" + "0230" + "030000000200000004" + "00" + "01"
        "02" + "0230" + "0200000007" + "010005" + "0200000001" + "01" + "02" + "0231" + "0200000003" + "00" + "00",
    ),
    (
        records.topology_record("g", SHAPE),
        "0017000167",
        "0000" + "00000003" + "02" + "0230" + "03" + "0273" + "0274" + "01"
        "02" + "0263" + "00000000" + "0000" + "02" + "026b" + "0276" + "00" + "00" + "02" + "0272"
        "02" + "0271" + "00000004" + "0001" + "01" + "00" + "02" + "03" + "0000" + "0001" + "01" + "02" + "0000" + "00"
        "00" + "00",
    ),
    (tombstone(records.MEMBER, "g", "m"), "001300016700016d", None),
]  # fmt: skip


@pytest.mark.parametrize(("record", "key", "value"), CASES)
def test_bytes(record: GroupRecord, key: str, value: str | None) -> None:
    assert_bytes(record, FORMATS, key, value, STORED if record.value is MEMBER else None)


def test_states_of_later_releases_and_tasks_without_epochs() -> None:
    """A state of a later release is unknown, and tasks without epochs have the member's epoch."""
    key, written = encode(RECORDS.current("g", MEMBER), FORMATS)
    assert written is not None
    read = decode_key(key, FORMATS)
    assert read is not None
    changed = bytearray(written)
    changed[10] = 9  # the state
    found = decode_value(read, bytes(changed), FORMATS)
    assert isinstance(found, CurrentAssignment)
    assert found.state is MemberState.UNKNOWN
    row = "02" + "0230" + "0200000005" + "00"
    old = bytes.fromhex("0000" + "00000004" + "00000003" + "01" + row + "01010101" + "01" + "00")
    assert decode_value(read, old, FORMATS).assigned.active == {"0": {5: 4}}
