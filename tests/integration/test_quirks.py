"""Twenty-two responses that break a client although the schema allows them, each with its tests.

The table below names them; a quirk that no test of one API can show is tested here, byte by byte on a connection.
"""

import ast
import struct
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.testing import VirtualBroker
from tests.support import wire
from tests.support.client import Body, Client, fetch_body, produce_body, row_of

ROOT = Path(__file__).resolve().parents[2]
HERE, METADATA = "integration/test_quirks", "unit/apis/test_apis_metadata"
NATIVE, FRAMES = "integration/test_native_handlers", "integration/test_hostile_frames"
PRODUCERS, TOPICS = "unit/log/producers/test_producer_state", "unit/metadata/test_topics"
#: By number: the quirk, and its tests or the situations whose responses are compared with Kafka's, by file.
QUIRKS: dict[int, tuple[str, dict[str, str]]] = {
    1: ("lowest versions are feature probes", {METADATA: "test_advertised_versions_are_the_table",
        "clients/test_scenario": "test_produce_with_each_codec_and_consume"}),  # kcat is the librdkafka that probes
    2: ("ApiVersions in an unknown version", {FRAMES: "test_versions_out_of_range",
        "conformance/situations/connections": "version_of_api_versions asked_twice"}),
    3: ("no feature with minimum level 0", {METADATA: "test_features_are_what_is_built"}),
    4: ("transaction.version only as far as it works", {METADATA: "test_features_are_what_is_built"}),
    5: ("empty records, never null", {HERE: "test_nothing_to_read_is_no_bytes_and_not_null"}),
    6: ("topic ids are all or nothing", {HERE: "test_responses_by_id_carry_the_id",
        TOPICS: "test_topics_come_back_with_their_ids test_a_recreated_topic_has_another_id",
        "conformance/situations/metadata": "by_name", "conformance/situations/offsets": "topics_that_are_not_there"}),
    7: ("the controller is the one broker", {"conformance/situations/metadata": "by_name",
        "conformance/situations/cluster": "described"}),
    8: ("DescribeTopicPartitions without null lists", {"conformance/situations/topics": "described_by_pages"}),
    9: ("authorized operations only when asked for", {"conformance/situations/metadata": "authorized_operations",
        "conformance/situations/group_admin": "operations_described"}),
    10: ("JoinGroup and SyncGroup", {"conformance/situations/groups": "life_of_a_member static_member",
        "unit/coordinator/test_group_membership": "test_members_wait_for_the_leaders_assignment"}),
    11: ("OffsetFetch", {"conformance/situations/offsets": "ways_to_ask ids_that_are_not_there"}),
    12: ("idempotence", {PRODUCERS: "test_five_batches_are_remembered test_sequence_wraps_to_zero",
        HERE: "test_idempotent_batches_over_the_wire"}),
    13: ("acks=0, long polls, large batches, wrong offsets", {
        HERE: "test_no_response_with_acks_0 test_a_whole_batch_however_large test_offsets_that_are_not_there",
        NATIVE: "test_fetch_waits_exactly_its_time test_min_bytes_adds_up_over_partitions"}),
    14: ("throttled: the response first, then no reading", {
        "integration/socket_server/test_socket_server": "test_throttle_outlasts_the_response",
        "integration/throttling/test_produce": "test_produce_responds_at_once_and_is_muted_to_the_millisecond"}),
    15: ("cluster id and leader epoch are stable", {"integration/test_broker": "test_a_restart_finds_everything",
        "conformance/situations/metadata": "by_name"}),
    16: ("no preferred read replica", {HERE: "test_no_consumer_is_sent_to_another_replica"}),
    17: ("DescribeConfigs and CreateTopics return all configs", {"conformance/situations/topics": "created",
        "conformance/situations/configs": "of_a_topic some_keys"}),
    18: ("DescribeQuorum", {"conformance/situations/cluster": "quorum",
        "unit/apis/test_apis_logs": "test_nodes_of_the_quorum"}),
    19: ("no telemetry", {METADATA: "test_advertised_versions_are_the_table"}),
    20: ("what is not served closes the connection", {FRAMES: "test_versions_out_of_range",
        "conformance/situations/connections": "keys_nobody_has versions_nobody_has"}),
    21: ("DescribeGroups of an unknown group", {"conformance/situations/group_admin": "states several_described",
        "integration/test_java_tools": "test_groups_with_members"}),
    22: ("Metadata of all, none and by id", {
        "conformance/situations/metadata": "all_topics no_topics by_id by_unknown_id name_and_id"}),
}  # fmt: skip


def test_every_quirk_has_its_tests() -> None:
    """The table has 22 quirks, and only tests and situations that exist."""
    assert list(QUIRKS) == list(range(1, 23))
    named = {(file, name) for _, tests in QUIRKS.values() for file, names in tests.items() for name in names.split()}
    there = set()
    for file in {file for file, _ in named}:
        tree = ast.parse((ROOT / "tests" / f"{file}.py").read_text(encoding="utf-8"))
        there |= {(file, node.name) for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert named <= there, named - there


@pytest.fixture
def broker() -> Iterator[VirtualBroker]:
    with VirtualBroker() as running:
        running.create_topic("t")
        yield running


def topic_id(client: Client, name: str = "t") -> uuid.UUID:
    (topic,) = client.call(wire.METADATA, 12, {"Topics": [{"Name": name}]})["Topics"]
    assert topic["ErrorCode"] == 0
    found: uuid.UUID = topic["TopicId"]
    return found


def fetch(client: Client, version: int, where: str | Body, **more: int) -> tuple[Body, Body]:
    """Fetch partition 0; return its row, and its topic's."""
    response = client.call(wire.FETCH, version, fetch_body(where, **more))  # type: ignore[arg-type]
    return row_of(response), response["Responses"][0]


def produce(client: Client, version: int, where: str | Body) -> tuple[Body, Body]:
    response = client.call(wire.PRODUCE, version, produce_body(where, acks=-1))
    return row_of(response), response["Responses"][0]


@pytest.mark.parametrize("version", range(4, 19))
def test_nothing_to_read_is_no_bytes_and_not_null(broker: VirtualBroker, version: int) -> None:
    """Null records are a protocol error to librdkafka at every fetch, and end kafka-python 3 (quirk 5)."""
    with Client(broker.bootstrap_servers) as one:
        where = {"TopicId": topic_id(one)} if version >= 13 else "t"
        row, _ = fetch(one, version, where)
        assert row["Records"] is not None
        assert (row["ErrorCode"], bytes(row["Records"])) == (0, b"")
        missing = {"TopicId": uuid.UUID(int=9)} if version >= 13 else "missing"
        row, _ = fetch(one, version, missing)
        assert row["Records"] is not None
        assert (row["ErrorCode"], bytes(row["Records"])) == (100 if version >= 13 else 3, b"")


def test_nothing_to_read_byte_by_byte(broker: VirtualBroker) -> None:
    """An int32 of 0, not -1, ends the response up to v11 (quirk 5)."""
    with Client(broker.bootstrap_servers) as one:
        assert one.ask(wire.fetch("t"))[-4:] == bytes(4)


@pytest.mark.parametrize("version", range(11, 19))
def test_no_consumer_is_sent_to_another_replica(broker: VirtualBroker, version: int) -> None:
    """A preferred read replica other than -1 makes librdkafka skip data (quirk 16)."""
    with Client(broker.bootstrap_servers) as one:
        where = {"TopicId": topic_id(one)} if version >= 13 else "t"
        assert fetch(one, version, where)[0]["PreferredReadReplica"] == -1
        one.ask(wire.produce("t", 0, wire.batch()))
        row, _ = fetch(one, version, where)
        assert (len(row["Records"]) > 0, row["PreferredReadReplica"]) == (True, -1)
        assert fetch(one, version, where, offset=7)[0]["PreferredReadReplica"] == -1


def test_responses_by_id_carry_the_id(broker: VirtualBroker) -> None:
    """Clients find their rows by id alone; the id of a deleted topic is 100, also when its name is back (quirk 6)."""
    with Client(broker.bootstrap_servers) as one:
        old = {"TopicId": topic_id(one)}
        row, topic = produce(one, 13, old)
        assert (row["ErrorCode"], row["BaseOffset"], topic["TopicId"]) == (0, 0, old["TopicId"])
        row, topic = fetch(one, 13, old)
        assert (row["ErrorCode"], row["HighWatermark"], topic["TopicId"]) == (0, 1, old["TopicId"])
        broker.delete_topic("t")
        broker.create_topic("t")
        new = {"TopicId": topic_id(one)}
        for where, code in ((old, 100), (new, 0)):
            row, topic = fetch(one, 18, where)
            assert (row["ErrorCode"], topic["TopicId"]) == (code, where["TopicId"])
            row, topic = produce(one, 13, where)
            assert (row["ErrorCode"], topic["TopicId"]) == (code, where["TopicId"])
        assert fetch(one, 12, "t")[0]["HighWatermark"] == 1


def test_idempotent_batches_over_the_wire(broker: VirtualBroker) -> None:
    """A new producer begins anywhere, five repeats get their offsets, gaps error 45, old epochs 47 (quirk 12)."""

    def send(sequence: int, *, producer: int = 7, epoch: int = 0, count: int = 1) -> tuple[int, int]:
        data = wire.batch([b"x"] * count, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)
        response = wire.produced(one.ask(wire.produce("t", 0, data, acks=-1)))
        return response.error_code, response.base_offset

    with Client(broker.bootstrap_servers) as one:
        assert [send(41 + n) for n in range(6)] == [(0, n) for n in range(6)]
        assert [send(42 + n) for n in range(5)] == [(0, 1 + n) for n in range(5)]
        assert send(41)[0] == 45
        assert send(48)[0] == 45
        assert send(47) == (0, 6)
        assert send(1, epoch=1)[0] == 45
        assert send(0, epoch=1) == (0, 7)
        assert send(48)[0] == 47
        assert send(2**31 - 1, producer=8, count=2) == (0, 8)  # sequences 2^31-1 and 0
        assert send(1, producer=8) == (0, 10)
        assert wire.fetched(one.ask(wire.fetch("t"))).high_watermark == 11


def test_pipelined_batches_keep_their_order(broker: VirtualBroker) -> None:
    """Five requests in flight on a connection are five successes: none overtakes another (quirk 12)."""
    with Client(broker.bootstrap_servers) as one:
        for n in range(5):
            data = wire.batch(producer_id=7, producer_epoch=0, base_sequence=n)
            one.send(wire.produce("t", 0, data, acks=-1))
        responses = [wire.produced(one.receive()) for _ in range(5)]
        assert [(response.error_code, response.base_offset) for response in responses] == [(0, n) for n in range(5)]


def test_no_response_with_acks_0(broker: VirtualBroker) -> None:
    """The next response is that of the next request, and the record exists; a failure closes (quirk 13)."""
    with Client(broker.bootstrap_servers) as one:
        one.send(wire.produce("t", 0, wire.batch(), acks=0))
        response = one.ask(wire.header(wire.API_VERSIONS, 0, 77))
        assert struct.unpack_from(">i", response) == (77,)
        assert wire.fetched(one.ask(wire.fetch("t"))).high_watermark == 1
        one.send(wire.produce("missing", 0, wire.batch(), acks=0))
        assert one.is_closed_within(5)


def test_a_whole_batch_however_large(broker: VirtualBroker) -> None:
    """A batch above both limits is returned whole, or its consumer would never proceed (quirk 13)."""
    data = wire.batch([b"x" * 100_000])
    with Client(broker.bootstrap_servers) as one:
        for _ in range(2):
            assert wire.produced(one.ask(wire.produce("t", 0, data))).error_code == 0
        for version in (4, 12, 18):
            where = {"TopicId": topic_id(one)} if version >= 13 else "t"
            row, _ = fetch(one, version, where, offset=1, max_bytes=1, partition_max_bytes=1)
            (base, length) = struct.unpack_from(">qi", row["Records"])
            assert (row["ErrorCode"], base, length + 12) == (0, 1, len(data))
            assert len(row["Records"]) >= len(data)


def test_offsets_that_are_not_there(broker: VirtualBroker) -> None:
    """Offsets behind the end and before the start get error 1 at once, whatever the maximum wait (quirk 13)."""
    with Client(broker.bootstrap_servers) as one:
        for _ in range(3):
            one.ask(wire.produce("t", 0, wire.batch()))
        cut = {"Name": "t", "Partitions": [{"PartitionIndex": 0, "Offset": 2}]}
        (topic,) = one.call(21, 2, {"Topics": [cut], "TimeoutMs": 1000})["Topics"]
        assert topic["Partitions"][0]["ErrorCode"] == 0
        for offset, code in ((1, 1), (2, 0), (4, 1), (-5, 1)):
            row, _ = fetch(one, 12, "t", offset=offset, max_wait_ms=600_000)
            assert row["ErrorCode"] == code, offset
