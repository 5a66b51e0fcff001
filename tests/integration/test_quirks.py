"""Twenty-two responses that break clients although the schema allows them, each with its tests.

The table names them; those that need several requests over a connection are tested here.
"""

import ast
import uuid
from pathlib import Path

from kbroker.testing import VirtualBroker
from tests.support import wire
from tests.support.client import Body, Client, fetch_body, produce_body, row_of
from tests.support.fixtures import fixture_of

ROOT = Path(__file__).resolve().parents[2]
HERE, METADATA = "integration/test_quirks", "unit/apis/test_apis_metadata"
NATIVE, FRAMES = "integration/test_native_handlers", "integration/test_hostile_frames"
FETCH, PRODUCE = "conformance/situations/fetch", "conformance/situations/produce"
PRODUCERS, TOPICS = "unit/log/producers/test_producer_state", "unit/metadata/test_topics"
#: By number: the quirk and, by file, its tests or the situations whose responses are compared with Kafka's.
QUIRKS: dict[int, tuple[str, dict[str, str]]] = {
    1: ("lowest versions are feature probes", {METADATA: "test_advertised_versions_are_the_table",
        # kcat is the librdkafka client that probes versions
        "clients/test_scenario": "test_produce_with_each_codec_and_consume"}),
    2: ("ApiVersions in an unknown version", {FRAMES: "test_versions_out_of_range",
        "conformance/situations/connections": "version_of_api_versions asked_twice"}),
    3: ("no feature with minimum level 0", {METADATA: "test_features_are_what_is_built"}),
    4: ("transaction.version only as far as it works", {METADATA: "test_features_are_what_is_built"}),
    5: ("empty records, never null", {FETCH: "nothing_there topics_that_are_not_there ids_that_are_not_there"}),
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
        HERE: "test_pipelined_batches_keep_their_order",
        PRODUCE: "sequences five_batches_are_remembered epochs unknown_producer sequence_wraps"}),
    13: ("acks=0, long polls, large batches, wrong offsets", {
        PRODUCE: "without_acks without_acks_to_nowhere",
        FETCH: "limit_of_a_partition record_above_all_limits out_of_range error_does_not_wait",
        NATIVE: "test_fetch_waits_exactly_its_time test_min_bytes_adds_up_over_partitions"}),
    14: ("throttled: the response first, then no reading", {
        "integration/socket_server/test_socket_server": "test_throttle_outlasts_the_response",
        "integration/throttling/test_produce": "test_produce_responds_at_once_and_is_muted_to_the_millisecond"}),
    15: ("cluster id and leader epoch are stable", {"integration/test_broker": "test_a_restart_finds_everything",
        "conformance/situations/metadata": "by_name"}),
    16: ("no preferred read replica", {FETCH: "by_offset rack"}),
    17: ("DescribeConfigs and CreateTopics return all configs", {"conformance/situations/topics": "created",
        "conformance/situations/configs": "of_a_topic some_keys"}),
    18: ("DescribeQuorum", {"conformance/situations/cluster": "quorum",
        "unit/apis/test_apis_logs": "test_nodes_of_the_quorum"}),
    19: ("telemetry", {METADATA: "test_advertised_versions_are_the_table",
        "integration/test_client_telemetry": "test_librdkafka_pushes"}),
    20: ("what is not served closes the connection", {FRAMES: "test_versions_out_of_range",
        "conformance/situations/connections": "keys_nobody_has versions_nobody_has"}),
    21: ("DescribeGroups of an unknown group", {"conformance/situations/group_admin": "states several_described",
        "integration/test_java_tools": "test_groups_with_members"}),
    22: ("Metadata of all, none and by id", {
        "conformance/situations/metadata": "all_topics no_topics by_id by_unknown_id name_and_id"}),
}  # fmt: skip


def test_every_quirk_has_its_tests() -> None:
    """The table has 22 quirks and names existing tests and situations only."""
    assert list(QUIRKS) == list(range(1, 23))
    named = {(file, name) for _, tests in QUIRKS.values() for file, names in tests.items() for name in names.split()}
    there = set()
    for file in {file for file, _ in named}:
        tree = ast.parse((ROOT / "tests" / f"{file}.py").read_text(encoding="utf-8"))
        there |= {(file, node.name) for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert named <= there, named - there


broker = fixture_of(VirtualBroker, topics={"t": 1})


def topic_id(client: Client, name: str = "t") -> uuid.UUID:
    (topic,) = client.call(wire.METADATA, 12, {"Topics": [{"Name": name}]})["Topics"]
    assert topic["ErrorCode"] == 0
    found: uuid.UUID = topic["TopicId"]
    return found


def fetch(client: Client, version: int, where: str | Body, **more: int) -> tuple[Body, Body]:
    """Fetch partition 0; return the row of the partition and the row of its topic."""
    response = client.call(wire.FETCH, version, fetch_body(where, **more))  # type: ignore[arg-type]
    return row_of(response), response["Responses"][0]


def produce(client: Client, version: int, where: str | Body) -> tuple[Body, Body]:
    response = client.call(wire.PRODUCE, version, produce_body(where, acks=-1))
    return row_of(response), response["Responses"][0]


def test_responses_by_id_carry_the_id(broker: VirtualBroker) -> None:
    """Responses by topic id have the id; the id of a deleted topic causes error 100, even when its name exists again
    (quirk 6).
    """
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


def test_pipelined_batches_keep_their_order(broker: VirtualBroker) -> None:
    """Five pipelined batches of an idempotent producer are appended in order (quirk 12)."""
    with Client(broker.bootstrap_servers) as one:
        for n in range(5):
            data = wire.batch(producer_id=7, producer_epoch=0, base_sequence=n)
            one.send(wire.produce("t", 0, data, acks=-1))
        responses = [wire.produced(one.receive()) for _ in range(5)]
        assert [(response.error_code, response.base_offset) for response in responses] == [(0, n) for n in range(5)]
