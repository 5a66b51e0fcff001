"""CreateTopics, DeleteTopics, CreatePartitions and ListOffsets in cases without a recorded response of Kafka."""

import uuid
from collections.abc import Sequence

import pytest

from kbroker.common.errors import Errors
from kbroker.handlers.api_table import KafkaApis
from kbroker.protocol import codec
from kbroker.requests.context import Body, RequestContext
from tests.support.server import Bench, make_bench

ZERO = uuid.UUID(int=0)


def new(
    name: str,
    partitions: int = 1,
    factor: int = 1,
    assignments: Sequence[tuple[int, list[int]]] = (),
    **configs: str | None,
) -> Body:
    return {
        "Name": name,
        "NumPartitions": partitions,
        "ReplicationFactor": factor,
        "Assignments": [{"PartitionIndex": index, "BrokerIds": brokers} for index, brokers in assignments],
        "Configs": [{"Name": key.replace("_", "."), "Value": value} for key, value in configs.items()],
    }


def create(bench: Bench, *topics: Body, validate: bool = False) -> dict[str, Body]:
    response = bench.ask("CreateTopics", 7, {"Topics": list(topics), "timeoutMs": 1000, "validateOnly": validate})
    return {row["Name"]: row for row in response["Topics"]}


@pytest.mark.parametrize("row", [{}, {"NumPartitions": 0, "Configs": [{"Name": "no.such", "Value": "1"}]}])
def test_the_topic_of_kafkas_metadata_is_not_made(bench: Bench, row: Body) -> None:
    """No request creates __cluster_metadata, even with other errors in it; a similar name is allowed."""
    topic = {"Name": "__cluster_metadata", "NumPartitions": 1, "ReplicationFactor": 1, **row}
    (response,) = bench.ask("CreateTopics", 7, {"Topics": [topic]})["Topics"]
    text = "Creation of internal topic __cluster_metadata is prohibited."
    assert (response["ErrorCode"], response["ErrorMessage"]) == (42, text)
    bench.ctx.topics.auto_create(["__cluster_metadata"])
    assert bench.ctx.topics.all() == []
    bench.create("__cluster.metadata")


def test_create_with_defaults_and_assignments() -> None:
    """Partitions and replicas of -1 are the broker's defaults; the response has the topic's id."""
    bench = make_bench(num_partitions=2)
    rows = create(bench, new("a", -1, -1), new("b", -1, -1, [(1, [1]), (0, [1]), (2, [1])]))
    assert {name: row["NumPartitions"] for name, row in rows.items()} == {"a": 2, "b": 3}
    assert rows["a"]["TopicId"] == bench.ctx.topics.get("a").topic_id != ZERO


def test_a_created_topic_shows_the_values_of_the_request(bench: Bench) -> None:
    """Spaces and case of the values are kept in the response, as in Kafka; DescribeConfigs shows the parsed values."""
    given = {"cleanup.policy": " compact , delete", "preallocate": " TRUE", "retention.ms": " 1000 "}
    topic = {**new("t"), "Configs": [{"Name": name, "Value": value} for name, value in given.items()]}
    row = create(bench, topic)["t"]
    assert {one["Name"]: one["Value"] for one in row["Configs"] if one["Name"] in given} == given
    assert row["ErrorCode"] == 0


def test_default_partitions_count_too() -> None:
    """A request creates at most 10,000 partitions, where -1 counts as the broker's default, as in Kafka."""
    bench = make_bench(num_partitions=3)
    (row,) = create(bench, new("t", 10_001)).values()
    assert (row["ErrorCode"], row["ErrorMessage"]) == (44, "Excessively large number of partitions per request.")
    rows = create(bench, *(new(f"t{number}", -1, -1) for number in range(3334)))
    assert {row["ErrorCode"] for row in rows.values()} == {44}
    rows = create(bench, *(new(f"t{number}", -1, -1) for number in range(3333)), new("u", -7, 1), validate=True)
    assert {name: row["ErrorCode"] for name, row in rows.items() if row["ErrorCode"]} == {"u": 37}
    rows = create(bench, new("a", 9_998), new("b", -1, -1, [(0, [1]), (1, [1])]), validate=True)
    assert {row["ErrorCode"] for row in rows.values()} == {0}


def test_only_topics_that_can_be_made_count() -> None:
    """The partitions of repeated topics are not created; too many of the others are an error of the whole request."""
    bench = make_bench()
    twice = [new("b", 9_999), new("b", 9_999)]
    rows = create(bench, new("a", 2), *twice, new("__cluster_metadata", 10_001))
    assert {name: row["ErrorCode"] for name, row in rows.items()} == {"a": 0, "b": 42, "__cluster_metadata": 42}
    body = {"Topics": [new("c", 10_001), *twice], "timeoutMs": 1000, "validateOnly": False}
    found = bench.ask("CreateTopics", 7, body)["Topics"]
    assert [(row["Name"], row["ErrorCode"]) for row in found] == [("c", 44), ("b", 44), ("b", 44)]


class Counted(str):
    """Name that counts its comparisons."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


@pytest.mark.parametrize("api", ["CreateTopics", "DeleteTopics", "OffsetForLeaderEpoch"])
def test_names_are_not_compared_with_each_other(api: str) -> None:
    """The number of comparisons grows linearly with the names; a quadratic search blocked the broker for minutes."""
    bench, count = make_bench(), 1000
    names = [Counted(f"t{number}") for number in range(count)]
    if api == "CreateTopics":
        body: Body = {"Topics": [{**new("t", 0), "Name": name} for name in names], "validateOnly": True}
    elif api == "DeleteTopics":
        bench.ctx.topics.auto_create([str(name) for name in names])
        ids = [{"Name": None, "TopicId": view.topic_id} for view in bench.ctx.topics.all()]
        body = {"Topics": [{"Name": name, "TopicId": ZERO} for name in names] + ids}
    else:
        rows = [{"Partition": 0, "CurrentLeaderEpoch": -1, "LeaderEpoch": 0}]
        body = {"Topics": [{"Topic": name, "Partitions": rows} for name in names]}
    key = codec.api_by_name(api).key
    entry = KafkaApis().find(key, codec.api(key).advertised_versions[1])
    assert entry is not None
    assert entry.handle is not None
    Counted.compared = 0
    facts = RequestContext(key, entry.max_version)
    response = entry.handle(bench.ctx, body, facts)
    if callable(response):
        response = response(bench.ctx, body, facts)
    assert response is not None
    assert len(response.get("Topics") or response["Responses"]) == count
    assert Counted.compared < 50 * count


# ---------------------------------------------------------------- DeleteTopics


@pytest.mark.parametrize(("version", "code"), [(2, 42), (3, 73), (6, 73)])
def test_delete_disabled(version: int, code: int) -> None:
    """Deletion that the broker forbids is TOPIC_DELETION_DISABLED, or INVALID_REQUEST for clients before v3."""
    bench = make_bench(delete_topic_enable=False)
    bench.create("t")
    body = {"Topics": [{"Name": "t"}]} if version >= 6 else {"TopicNames": ["t"]}
    (row,) = bench.ask("DeleteTopics", version, body)["Responses"]
    assert row["ErrorCode"] == code


def test_a_topic_id_named_twice_deletes_nothing(bench: Bench) -> None:
    view = bench.create("t")
    (row,) = bench.ask("DeleteTopics", 6, {"Topics": [{"Name": None, "TopicId": view.topic_id}] * 2})["Responses"]
    assert (row["TopicId"], row["ErrorCode"], row["ErrorMessage"]) == (view.topic_id, 42, "Duplicate topic id.")
    assert bench.ctx.topics.get("t") is view


def test_the_name_of_an_id_named_twice_deletes_nothing(bench: Bench) -> None:
    """A topic is deleted once or not at all: its name beside a duplicate of its id is refused, too."""
    view = bench.create("t")
    body = {"Topics": [{"Name": None, "TopicId": view.topic_id}] * 2 + [{"Name": "t", "TopicId": ZERO}]}
    rows = bench.ask("DeleteTopics", 6, body)["Responses"]
    assert {(row["Name"], row["TopicId"], row["ErrorCode"], row["ErrorMessage"]) for row in rows} == {
        (None, view.topic_id, 42, "Duplicate topic id."),
        ("t", view.topic_id, 42, "The provided topic name maps to an ID that was already supplied."),
    }
    assert bench.ctx.topics.get("t") is view


# ---------------------------------------------------------------- CreatePartitions


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state"])
def test_an_internal_topic_does_not_grow(bench: Bench, name: str) -> None:
    """Growth is rejected, because after it Kafka would not find the offsets of most groups."""
    bench.create(name, 2)
    fixed = f"The internal topic {name} has 2 partition(s), and their number is fixed"
    for count, validate, text in ((3, True, fixed), (3, False, fixed), (2, False, "Topic already has 2 partition(s).")):
        body = {"Topics": [{"Name": name, "Count": count, "Assignments": None}], "ValidateOnly": validate}
        (row,) = bench.ask("CreatePartitions", 3, body)["Results"]
        assert row["ErrorCode"] == 37
        assert row["ErrorMessage"].startswith(text)
    assert len(bench.ctx.topics.get(name).partitions) == 2


@pytest.mark.parametrize(("assignments", "error"), [(None, 44), ([], 39), ([{"BrokerIds": [1]}], 39)])
def test_too_many_partitions_at_once(bench: Bench, assignments: list[Body] | None, error: int) -> None:
    """A number of assignments that does not fit is refused first, as in Kafka."""
    bench.create("t")
    body = {"Topics": [{"Name": "t", "Count": 10_002, "Assignments": assignments}]}
    assert [row["ErrorCode"] for row in bench.ask("CreatePartitions", 3, body)["Results"]] == [error]


def test_grow_one_topic_twice(bench: Bench) -> None:
    """The request is rejected, and the topic keeps its partitions."""
    bench.create("t")
    body = {"Topics": [{"Name": "t", "Count": 2}, {"Name": "t", "Count": 3}]}
    assert [row["ErrorCode"] for row in bench.ask("CreatePartitions", 3, body)["Results"]] == [42]
    assert len(bench.ctx.topics.get("t").partitions) == 1


# ---------------------------------------------------------------- ListOffsets


def offsets(
    bench: Bench, *rows: tuple[int, int], isolation: int = 0, epoch: int = -1
) -> list[tuple[int, int, int, int]]:
    """Look up each (partition, timestamp) of topic t; return (error code, timestamp, offset, epoch) for each."""
    partitions = [
        {"PartitionIndex": index, "Timestamp": timestamp, "CurrentLeaderEpoch": epoch} for index, timestamp in rows
    ]
    body = {"ReplicaId": -1, "IsolationLevel": isolation, "Topics": [{"Name": "t", "Partitions": partitions}]}
    (topic,) = bench.ask("ListOffsets", 11, body)["Topics"]
    return [(r["ErrorCode"], r["Timestamp"], r["Offset"], r["LeaderEpoch"]) for r in topic["Partitions"]]


def timed() -> Bench:
    bench = make_bench()
    bench.create("t", 2).partitions[0].fill(10, 40, 20, 30)
    return bench


def test_read_committed_ends_at_the_last_stable_offset() -> None:
    """The last stable offset is the end offset, and no timestamp finds a record beyond it."""
    bench = timed()
    bench.logs.open["t", 0].last_stable_offset = 1
    assert offsets(bench, (0, -1), isolation=1) == [(0, -1, 1, 0)]
    assert offsets(bench, (0, 40), isolation=1) == [(0, -1, -1, -1)]
    assert offsets(bench, (0, 40), isolation=0) == [(0, 40, 1, 0)]


@pytest.mark.parametrize(("failure", "code"), [(OSError(5, "I/O"), 56), (ValueError("closed"), 3)])
def test_a_log_that_cannot_be_read(failure: OSError | ValueError, code: int) -> None:
    """A disk error has code 56 and a topic deleted meanwhile code 3; the other partition is not affected."""
    bench = timed()
    bench.logs.open["t", 0].fail = failure
    assert [row[0] for row in offsets(bench, (0, 5), (1, 5))] == [code, 0]


def test_an_offline_partition() -> None:
    """A log that could not be read at start has error 56 here and no leader in Metadata; the other partition works."""
    first = make_bench()
    first.create("t", 2)
    first.logs.fail_at = ("t", 0)
    first.logs.open.clear()
    first.ctx.topics.load()
    assert [row[0] for row in offsets(first, (0, -1), (1, -1), (2, -1))] == [56, 0, 3]
    (topic,) = first.ask("Metadata", 12, {"Topics": [{"Name": "t"}]})["Topics"]
    rows = [(row["ErrorCode"], row["LeaderId"], row["OfflineReplicas"]) for row in topic["Partitions"]]
    assert rows == [(5, -1, [1]), (0, 1, [])]


def test_an_older_leader_epoch_is_fenced() -> None:
    bench = timed()
    bench.logs.open["t", 0].leader_epoch = 2
    assert [offsets(bench, (0, -1), epoch=epoch)[0][0] for epoch in (1, 2, 3)] == [74, 0, 75]


def test_an_unknown_topic_without_partitions_has_no_response() -> None:
    body = {"ReplicaId": -1, "Topics": [{"Name": "absent", "Partitions": []}]}
    assert timed().ask("ListOffsets", 5, body)["Topics"] == []


# ---------------------------------------------------------------- DescribeTopicPartitions


def pages(bench: Bench, *names: str, cursor: tuple[str, int]) -> dict[str, Body]:
    at = {"TopicName": cursor[0], "PartitionIndex": cursor[1]}
    body = {"Topics": [{"Name": name} for name in names], "ResponsePartitionLimit": 9, "Cursor": at}
    return {row["Name"]: row for row in bench.ask("DescribeTopicPartitions", 0, body)["Topics"]}


def test_the_partition_of_a_cursor_at_an_unknown_topic_is_not_that_of_the_next_one(bench: Bench) -> None:
    """The topic after an unknown one is described from its first partition on."""
    bench.create("there", partitions=2)
    rows = pages(bench, "absent", "there", cursor=("absent", 1))
    assert rows["absent"]["ErrorCode"] == Errors.UNKNOWN_TOPIC_OR_PARTITION
    assert [each["PartitionIndex"] for each in rows["there"]["Partitions"]] == [0, 1]


def test_a_topic_without_a_name_before_the_cursor_is_left_out(bench: Bench) -> None:
    """A cursor is checked before names are looked up; names before the cursor are not looked up at all."""
    bench.create("there")
    assert {*pages(bench, "", "there", cursor=("there", 0))} == {"there"}
    rows = pages(bench, "", "there", cursor=("other", 0))
    assert {row["ErrorCode"] for row in rows.values()} == {Errors.INVALID_REQUEST}
