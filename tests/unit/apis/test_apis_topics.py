"""CreateTopics, DeleteTopics, CreatePartitions, ListOffsets and InitProducerId."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import pytest

from kbroker.common.errors import Errors
from kbroker.handlers.api_table import KafkaApis
from kbroker.protocol import codec
from kbroker.requests.context import Body, RequestContext
from tests.support.server import Bench, make_bench

UNKNOWN_ID = uuid.UUID(int=0x1234)
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


def create(bench: Bench, *topics: Body, version: int = 7, validate: bool = False) -> dict[str, Body]:
    response = bench.ask("CreateTopics", version, {"Topics": list(topics), "timeoutMs": 1000, "validateOnly": validate})
    return {row["Name"]: row for row in response["Topics"]}


@pytest.mark.parametrize("row", [{}, {"NumPartitions": 0, "Configs": [{"Name": "no.such", "Value": "1"}]}])
def test_the_topic_of_kafkas_metadata_is_not_made(row: Body) -> None:
    """No request creates __cluster_metadata, whatever else is wrong with it; a name near it is free."""
    bench = make_bench()
    topic = {"Name": "__cluster_metadata", "NumPartitions": 1, "ReplicationFactor": 1, **row}
    (response,) = bench.ask("CreateTopics", 7, {"Topics": [topic]})["Topics"]
    text = "Creation of internal topic __cluster_metadata is prohibited."
    assert (response["ErrorCode"], response["ErrorMessage"]) == (42, text)
    bench.ctx.topics.auto_create(["__cluster_metadata"])
    assert bench.ctx.topics.all() == []
    bench.create("__cluster.metadata")


@pytest.mark.parametrize("version", range(2, 8))
def test_create_in_every_version(version: int) -> None:
    """v5 and later have partitions, factor and configs, v7 the id (quirk 17)."""
    bench = make_bench()
    rows = create(bench, new("t", 3, retention_ms="5"), version=version)
    row, view = rows["t"], bench.ctx.topics.get("t")
    assert (row["ErrorCode"], row["ErrorMessage"], len(view.partitions)) == (0, None, 3)
    assert (row["NumPartitions"], row["ReplicationFactor"]) == ((3, 1) if version >= 5 else (-1, -1))
    assert row["TopicId"] == (view.topic_id if version >= 7 else ZERO)
    if version >= 5:
        configs = {one["Name"]: (one["Value"], one["ConfigSource"]) for one in row["Configs"]}
        assert (configs["retention.ms"], configs["segment.ms"]) == (("5", 1), ("604800000", 5))
        assert (configs["min.insync.replicas"], len(configs)) == (("1", 3), 33)
    assert create(bench, new("t"), version=version)["t"]["ErrorCode"] == 36


@pytest.mark.parametrize(
    ("topic", "code", "message"),
    [
        (new("white space"), 17, "Topic name is invalid: 'white space' contains one or more characters other than "
         "ASCII alphanumerics, '.', '_' and '-'"),
        (new("t", 0), 37, "Number of partitions was set to an invalid non-positive value."),
        (new("t", 1, 0), 38, "Replication factor must be larger than 0, or -1 to use the default value."),
        (new("t", 1, 3), 38, "Unable to replicate the partition 3 time(s): The target replication "
         "factor of 3 "
         "cannot be reached because only 1 broker(s) are registered or some brokers have "
         "all their log directories cordoned."),
        (new("t", -1, -1, [(0, [99])]), 39,
         "The manual partition assignment includes broker 99, but no such broker is registered."),
        (new("t", -1, -1, [(0, [1, 1])]), 39, "The manual partition assignment includes the broker 1 more than once."),
        (new("t", -1, -1, [(1, [1])]), 39, "partitions should be a consecutive 0-based integer sequence"),
        (new("t", -1, -1, [(0, [])]), 39, "The manual partition assignment includes an empty replica list."),
        (new("t", 1, -1, [(0, [1])]), 42,
         "A manual partition assignment was specified, but numPartitions was not set to -1."),
        (new("t", -1, 1, [(0, [1])]), 42,
         "A manual partition assignment was specified, but replication factor was not set to -1."),
        (new("t", no_such_key="1"), 40, "Unknown topic config name: no.such.key"),
        (new("t", retention_ms=None), 40, "Null value not supported for topic configs: retention.ms"),
        (new("t", 10001), 44, "Excessively large number of partitions per request."),
    ],
)  # fmt: skip
def test_create_refuses_in_kafkas_words(topic: Body, code: int, message: str) -> None:
    """The code and text of Kafka 4.3.1, and no topic."""
    bench = make_bench()
    row = create(bench, topic)[topic["Name"]]
    assert (row["ErrorCode"], row["ErrorMessage"]) == (code, message)
    assert (row["TopicId"], row["NumPartitions"], row["ReplicationFactor"], row["Configs"]) == (ZERO, -1, -1, [])
    assert bench.ctx.topics.all() == []


def test_create_with_defaults_and_assignments() -> None:
    """-1 and -1 give the broker's defaults; assignments count partitions."""
    bench = make_bench(num_partitions=2)
    rows = create(bench, new("a", -1, -1), new("b", -1, -1, [(1, [1]), (0, [1]), (2, [1])]))
    assert {name: row["NumPartitions"] for name, row in rows.items()} == {"a": 2, "b": 3}


def test_a_name_twice_is_refused_once_and_others_go_on() -> None:
    """One row for the name, with 42; a config named twice counts as the last says."""
    bench = make_bench()
    twice = new("c")
    twice["Configs"] = [{"Name": "retention.ms", "Value": "1"}, {"Name": "retention.ms", "Value": "2"}]
    rows = create(bench, new("a"), new("a", 2), twice)
    assert {name: row["ErrorCode"] for name, row in rows.items()} == {"a": 42, "c": 0}
    assert bench.ctx.topics.get("c").configs == {"retention.ms": "2"}


def test_default_partitions_count_too() -> None:
    """10,000 partitions a request, -1 as many as the broker's default: beyond that no topic is made, as in Kafka."""
    bench = make_bench(num_partitions=3)
    rows = create(bench, *(new(f"t{number}", -1, -1) for number in range(3334)))
    assert {row["ErrorCode"] for row in rows.values()} == {44}
    rows = create(bench, *(new(f"t{number}", -1, -1) for number in range(3333)), new("u", -7, 1), validate=True)
    assert {name: row["ErrorCode"] for name, row in rows.items() if row["ErrorCode"]} == {"u": 37}
    rows = create(bench, new("a", 9_998), new("b", -1, -1, [(0, [1]), (1, [1])]), validate=True)
    assert {row["ErrorCode"] for row in rows.values()} == {0}


class Counted(str):
    """A name that counts how often it is compared."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


@pytest.mark.parametrize("api", ["CreateTopics", "DeleteTopics", "OffsetForLeaderEpoch"])
def test_names_are_not_compared_with_each_other(api: str) -> None:
    """A megabyte of names was compared for minutes, while no other Python of the broker ran."""
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
    response = entry.handle(bench.ctx, body, RequestContext(key, entry.max_version))
    assert response is not None
    assert len(response.get("Topics") or response["Responses"]) == count
    assert Counted.compared < 50 * count


def test_validate_only_responds_as_if_done() -> None:
    """With an id and configs, and nothing made."""
    bench = make_bench()
    row = create(bench, new("t", 2), validate=True)["t"]
    assert (row["ErrorCode"], row["NumPartitions"], row["TopicId"] != ZERO) == (0, 2, True)
    assert bench.ctx.topics.all() == []


# ---------------------------------------------------------------- DeleteTopics


def delete(bench: Bench, *rows: Body, version: int = 6) -> list[tuple[str | None, uuid.UUID, int, str | None]]:
    body = {"Topics": list(rows)} if version >= 6 else {"TopicNames": [row["Name"] for row in rows]}
    response = bench.ask("DeleteTopics", version, body)
    return [(row["Name"], row["TopicId"], row["ErrorCode"], row["ErrorMessage"]) for row in response["Responses"]]


@pytest.mark.parametrize("version", range(1, 7))
def test_delete_by_name(version: int) -> None:
    """The topic goes, an unknown one is 3, then the first is unknown too."""
    bench = make_bench()
    view = bench.create("t")
    text = "This server does not host this topic-partition." if version >= 5 else None
    topic_id = view.topic_id if version >= 6 else ZERO
    rows = delete(bench, {"Name": "t"}, {"Name": "missing"}, version=version)
    assert sorted(rows) == [("missing", ZERO, 3, text), ("t", topic_id, 0, None)]
    assert delete(bench, {"Name": "t"}, version=version) == [("t", ZERO, 3, text)]
    assert bench.logs.open == {}


def test_delete_by_id() -> None:
    """A found id gives its name, an unknown one none (100)."""
    bench = make_bench()
    view = bench.create("t")
    rows = delete(bench, {"TopicId": view.topic_id}, {"TopicId": UNKNOWN_ID})
    assert {row[:3] for row in rows} == {("t", view.topic_id, 0), (None, UNKNOWN_ID, 100)}


def test_delete_refuses_what_is_unclear() -> None:
    """Neither, both, one topic by name and id, one name twice: 42, and the topic stays."""
    bench = make_bench()
    view = bench.create("t")
    one = {"Name": "t"}, {"TopicId": view.topic_id}
    found = [
        delete(bench, {"Name": None}),
        delete(bench, {"Name": "t", "TopicId": view.topic_id}),
        delete(bench, *one),
        delete(bench, one[0], one[0]),
        delete(bench, one[1], one[1]),
    ]
    assert found == [
        [(None, ZERO, 42, "Neither topic name nor id were specified.")],
        [("t", view.topic_id, 42, "You may not specify both topic name and topic id.")],
        [("t", view.topic_id, 42, "The provided topic name maps to an ID that was already supplied.")],
        [("t", ZERO, 42, "Duplicate topic name.")],
        [(None, view.topic_id, 42, "Duplicate topic id.")],
    ]
    assert bench.ctx.topics.get("t") is view


@pytest.mark.parametrize(("version", "code"), [(2, 42), (3, 73), (6, 73)])
def test_delete_disabled(version: int, code: int) -> None:
    """TOPIC_DELETION_DISABLED when the broker forbids it; clients before v3 get INVALID_REQUEST."""
    bench = make_bench(delete_topic_enable=False)
    bench.create("t")
    assert delete(bench, {"Name": "t"}, version=version)[0][2] == code


# ---------------------------------------------------------------- CreatePartitions


def grow(
    bench: Bench,
    name: str,
    count: int,
    assignments: list[list[int]] | None = None,
    validate: bool = False,
    version: int = 3,
) -> tuple[int, str | None]:
    rows = None if assignments is None else [{"BrokerIds": brokers} for brokers in assignments]
    body = {"Topics": [{"Name": name, "Count": count, "Assignments": rows}], "ValidateOnly": validate}
    (row,) = bench.ask("CreatePartitions", version, body)["Results"]
    return row["ErrorCode"], row["ErrorMessage"]


@pytest.mark.parametrize("version", range(4))
def test_grow(version: int) -> None:
    """To three; then as many, fewer and none are 37; a missing topic is 3 without a text."""
    bench = make_bench()
    bench.create("t")
    assert grow(bench, "t", 3, validate=True, version=version) == (0, None)
    assert len(bench.ctx.topics.get("t").partitions) == 1
    assert grow(bench, "t", 3, version=version) == (0, None)
    assert len(bench.ctx.topics.get("t").partitions) == 3
    assert grow(bench, "t", 3, version=version) == (37, "Topic already has 3 partition(s).")
    text = "The topic t currently has 3 partition(s); 0 would not be an increase."
    assert grow(bench, "t", 0, version=version) == (37, text)
    assert grow(bench, "missing", 3, version=version) == (3, None)


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state"])
def test_an_internal_topic_does_not_grow(name: str) -> None:
    """Kafka lets it grow, and after a restart does not find the offsets of most groups."""
    bench = make_bench()
    bench.create(name, 2)
    for validate in (True, False):
        error, text = grow(bench, name, 3, validate=validate)
        assert error == 37
        assert f"The internal topic {name} has 2 partition(s), and their number is fixed" in str(text)
    assert grow(bench, name, 2) == (37, "Topic already has 2 partition(s).")
    assert len(bench.ctx.topics.get(name).partitions) == 2


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([[1]], "Attempted to add 2 additional partition(s), but only 1 assignment(s) were specified."),
        ([], "Attempted to add 2 additional partition(s), but only 0 assignment(s) were specified."),
        ([[1], [99]], "The manual partition assignment includes broker 99, but no such broker is registered."),
        ([[1, 1], [1]], "The manual partition assignment includes the broker 1 more than once."),
        ([[], []], "The manual partition assignment includes an empty replica list."),
    ],
)
def test_grow_with_assignments(rows: list[list[int]], text: str) -> None:
    """Assignments must fit the partitions that are added."""
    bench = make_bench()
    bench.create("t")
    assert grow(bench, "t", 3, rows) == (39, text)
    assert grow(bench, "t", 3, [[1], [1]]) == (0, None)


def test_grow_one_topic_twice() -> None:
    """42 once, and the topic stays as it is."""
    bench = make_bench()
    bench.create("t")
    body = {"Topics": [{"Name": "t", "Count": 2}, {"Name": "t", "Count": 3}]}
    response = bench.ask("CreatePartitions", 3, body)
    assert [(r["Name"], r["ErrorCode"], r["ErrorMessage"]) for r in response["Results"]] == [
        ("t", 42, "Duplicate topic name.")
    ]
    assert len(bench.ctx.topics.get("t").partitions) == 1


# ---------------------------------------------------------------- ListOffsets


def offsets(
    bench: Bench, *rows: tuple[int, ...], version: int = 11, isolation: int = 0
) -> list[tuple[int, int, int, int]]:
    """Rows of (partition, timestamp[, epoch]) of topic t; gives (code, timestamp, offset, epoch) of each."""
    partitions = [
        {"PartitionIndex": row[0], "Timestamp": row[1], "CurrentLeaderEpoch": row[2] if len(row) > 2 else -1}
        for row in rows
    ]
    body = {"ReplicaId": -1, "IsolationLevel": isolation, "Topics": [{"Name": "t", "Partitions": partitions}]}
    (topic,) = bench.ask("ListOffsets", version, body)["Topics"]
    return [(r["ErrorCode"], r["Timestamp"], r["Offset"], r["LeaderEpoch"]) for r in topic["Partitions"]]


def timed() -> Bench:
    bench = make_bench()
    bench.create("t", 2).partitions[0].fill(10, 40, 20, 30)
    return bench


@pytest.mark.parametrize(
    ("stamp", "since", "response"),
    [(-1, 1, (0, -1, 4)), (-2, 1, (0, -1, 0)), (-3, 7, (0, 40, 1)), (-4, 8, (0, -1, 0)), (-5, 9, (0, -1, -1)),
     (-6, 11, (0, -1, -1)), (-7, 12, ())],
)  # fmt: skip
@pytest.mark.parametrize("version", range(1, 12))
def test_special_timestamps(version: int, stamp: int, since: int, response: tuple[int, ...]) -> None:
    """Each from its version on, UNSUPPORTED_VERSION below it; nothing is tiered."""
    (row,) = offsets(timed(), (0, stamp), version=version)
    assert row[:3] == (response if version >= since else (35, -1, -1))
    assert row[3] == (0 if version >= 4 and row[0] == 0 and row[2] >= 0 else -1)


@pytest.mark.parametrize(
    ("stamp", "response"), [(0, (10, 0)), (10, (10, 0)), (11, (40, 1)), (40, (40, 1)), (41, (-1, -1))]
)
def test_by_time(stamp: int, response: tuple[int, int]) -> None:
    """The first record at or after a time, in the order of offsets; -1 when there is none (Spark counts on it)."""
    (row,) = offsets(timed(), (0, stamp))
    assert row[1:3] == response


def test_records_below_the_log_start_are_not_found() -> None:
    """After DeleteRecords a time finds only what is left."""
    bench = timed()
    bench.logs.open["t", 0].log_start_offset = 3
    assert offsets(bench, (0, 5)) == [(0, 30, 3, 0)]


def test_read_committed_ends_at_the_last_stable_offset() -> None:
    """The end and times alike; what is not yet decided is not found."""
    bench = timed()
    bench.logs.open["t", 0].last_stable_offset = 1
    assert offsets(bench, (0, -1), isolation=1) == [(0, -1, 1, 0)]
    assert offsets(bench, (0, 40), isolation=1) == [(0, -1, -1, -1)]
    assert offsets(bench, (0, 40), isolation=0) == [(0, 40, 1, 0)]


@pytest.mark.parametrize(("failure", "code"), [(OSError(5, "I/O"), 56), (ValueError("closed"), 3)])
def test_a_log_that_cannot_be_read(failure: OSError | ValueError, code: int) -> None:
    """A disk error is 56, a topic deleted meanwhile 3; the other partition is served."""
    bench = timed()
    bench.logs.open["t", 0].fail = failure
    assert [row[0] for row in offsets(bench, (0, 5), (1, 5))] == [code, 0]


def test_an_offline_partition() -> None:
    """A log that could not be read at start: 56 here, no leader in Metadata; the other partition serves."""
    first = make_bench()
    first.create("t", 2)
    first.logs.fail_at = ("t", 0)
    first.logs.open.clear()
    first.ctx.topics.load()
    assert [row[0] for row in offsets(first, (0, -1), (1, -1), (2, -1))] == [56, 0, 3]
    (topic,) = first.ask("Metadata", 12, {"Topics": [{"Name": "t"}]})["Topics"]
    rows = [(row["ErrorCode"], row["LeaderId"], row["OfflineReplicas"]) for row in topic["Partitions"]]
    assert rows == [(5, -1, [1]), (0, 1, [])]


def test_empty_log() -> None:
    """Ends are 0 with an epoch; there is no largest time stamp."""
    assert offsets(timed(), (1, -1)) == [(0, -1, 0, 0)]
    assert offsets(timed(), (1, -3)) == [(0, -1, -1, -1)]


def test_epochs() -> None:
    """A future epoch is 75; an older one, once there is one, 74."""
    bench = timed()
    assert [row[0] for row in offsets(bench, (0, -1, 3), (1, -1, 0))] == [75, 0]
    bench.logs.open["t", 0].leader_epoch = 2
    assert [row[0] for row in offsets(bench, (0, -1, 1))] == [74]


def test_unknown_and_repeated_partitions() -> None:
    """3 for what is not there, 42 once for what is asked twice."""
    assert [row[0] for row in offsets(timed(), (0, -1), (5, -1), (-1, -1))] == [0, 3, 3]
    assert offsets(timed(), (0, -1), (0, -2)) == [(42, -1, -1, -1)]
    body = {"ReplicaId": -1, "Topics": [{"Name": "missing", "Partitions": [{"PartitionIndex": 0, "Timestamp": -1}]}]}
    assert timed().ask("ListOffsets", 1, body)["Topics"][0]["Partitions"][0]["ErrorCode"] == 3


@pytest.mark.parametrize(
    ("api", "version", "topic"),
    [("ListOffsets", 5, {"Name": "t"}), ("DeleteRecords", 1, {"Name": "t"}), ("ListOffsets", 5, {"Name": "absent"})],
)
def test_topic_without_partitions_has_no_response(api: str, version: int, topic: dict[str, str]) -> None:
    """Kafka responds by partitions: where none is named, the topic is not in the response."""
    body = {"ReplicaId": -1, "TimeoutMs": 1000, "Topics": [{**topic, "Partitions": []}]}
    known = {
        key: value for key, value in body.items() if (key == "ReplicaId") == (api == "ListOffsets") or key == "Topics"
    }
    assert timed().ask(api, version, known)["Topics"] == []


# ---------------------------------------------------------------- InitProducerId


def init(
    bench: Bench, transactional_id: str | None, version: int = 4, timeout_ms: int = 60000, **more: int
) -> tuple[int, int, int]:
    body = {"TransactionalId": transactional_id, "TransactionTimeoutMs": timeout_ms, **more}
    response = bench.ask("InitProducerId", version, body)
    return response["ErrorCode"], response["ProducerId"], response["ProducerEpoch"]


@pytest.mark.parametrize("version", range(6))
def test_idempotent_producers_get_ids(version: int) -> None:
    """A new id each time with epoch 0, whatever the time-out."""
    bench = make_bench()
    assert [init(bench, None, version), init(bench, None, version, 0)] == [(0, 0, 0), (0, 1, 0)]


@pytest.mark.parametrize("version", [3, 4, 5])
def test_half_an_identity_is_refused(version: int) -> None:
    """A producer names its id and its epoch, or neither."""
    bench = make_bench()
    refused = (int(Errors.INVALID_REQUEST), -1, -1)
    assert init(bench, None, version, ProducerId=5, ProducerEpoch=-1) == refused
    assert init(bench, None, version, ProducerId=-1, ProducerEpoch=3) == refused
    assert init(bench, None, version, ProducerId=5, ProducerEpoch=3) == (0, 0, 0)


def test_a_producer_that_names_an_old_id_gets_a_new_one() -> None:
    """Without a transactional id nothing can be bumped."""
    assert init(make_bench(), None, ProducerId=5, ProducerEpoch=3) == (0, 0, 0)
