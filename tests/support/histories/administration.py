"""Random requests that create, change, describe and delete the topics of an administrator."""

from __future__ import annotations

from typing import Any

from tests.conformance.codec import ZERO_ID
from tests.support.histories.draw import Draw
from tests.support.histories.steps import ABSENT_ID, NODE, TOPICS, Body, Known, Reference, Step, named

LABELS = ("a", "b.c", "b_c", "b-c")  # the second and third collide in the names of metrics
ODD_NAMES = ("", ".", "..", "b a d", "x" * 250, "é")
LONGEST = 249
ALL_PARTITIONS = range(7)
CONFIGS: tuple[tuple[str, str | None], ...] = (
    ("retention.ms", "1000"), ("retention.ms", "soon"), ("retention.ms", None), ("cleanup.policy", "compact,delete"),
    ("cleanup.policy", "shred"), ("cleanup.policy", ""), ("no.such.key", "1"), ("", ""), ("segment.bytes", "1"),
    ("min.insync.replicas", "2"), ("compression.type", "gzip"), ("compression.gzip.level", "0"),
    ("message.timestamp.type", " LogAppendTime "), ("max.message.bytes", "2000"), ("preallocate", "yes"),
    ("segment.bytes", "3000000"), ("index.interval.bytes", "9" * 12), ("follower.replication.throttled.replicas", "*"),
    ("leader.replication.throttled.replicas", "0:1,1:1"), ("unclean.leader.election.enable", "TRUE"),
)  # fmt: skip
TIMEOUTS_MS = (30_000, 30_000, 30_000, 10_000)


def _longest() -> Reference:
    return Reference("a name of 249 characters", lambda known: known.name("").ljust(LONGEST, "x"))


def name(draw: Draw) -> Any:
    """Return the name of a topic that may exist, rarely one that cannot."""
    return named(draw.one(LABELS)) if draw.happens(0.88) else draw.one([*ODD_NAMES, _longest()])


def topic_id(label: str) -> Reference:
    """Return the last id of a topic, of no topic before its creation."""
    return Reference(f"id of {label}", lambda known: known.topic_ids.get(known.name(label), ABSENT_ID))


def is_there(*labels: str) -> Step:
    """Return requests whose responses are equal once a broker has loaded the topics."""
    times = [{"PartitionIndex": each, "Timestamp": -1} for each in ALL_PARTITIONS]
    offsets = Step("ListOffsets", 2, {"Topics": [{"Name": named(each), "Partitions": times} for each in labels]})
    topics = [{"Name": named(each)} for each in labels]
    return Step("Metadata", 12, {"Topics": topics, "AllowAutoTopicCreation": False}, settled=offsets)


# ---- changes


def create(draw: Draw) -> Step:
    rows = [_created(draw) for _ in draw.rows(0, 1, 1, 1, 2, 2)]
    body = {"Topics": rows, "timeoutMs": draw.one(TIMEOUTS_MS), "validateOnly": draw.happens(0.15)}
    return Step("CreateTopics", draw.random.randint(2, 7), body, settled=is_there(*LABELS))


def _created(draw: Draw) -> Body:
    count, factor = draw.one([1, 1, 2, 3, -1, 0, -2]), draw.one([1, 1, 1, -1, -1, 0, 2, -2, 32767])
    row: Body = {"Name": name(draw), "NumPartitions": count, "ReplicationFactor": factor, "Configs": []}
    if draw.happens(0.3):
        row["Configs"] = [{"Name": key, "Value": value} for key, value in _configs(draw)]
    if draw.happens(0.25):
        row["Assignments"] = [
            {"PartitionIndex": index, "BrokerIds": brokers(draw)}
            for index in draw.one([[0], [0, 1], [1, 0], [1], [0, 0], [-1], [0, 2]])
        ]
        if draw.happens(0.8):
            row |= {"NumPartitions": -1, "ReplicationFactor": -1}
    return row


def _configs(draw: Draw) -> list[tuple[str, str | None]]:
    return [draw.one(CONFIGS) for _ in draw.rows(1, 1, 2)]


def brokers(draw: Draw) -> list[Any]:
    """Return the brokers of a replica assignment, mostly the only one."""
    return draw.one([[NODE], [NODE], [NODE], [NODE], [], [NODE, NODE], [NODE, 99], [99], [-1]])


def delete(draw: Draw) -> Step:
    version, timeout_ms = draw.random.randint(1, 6), draw.one(TIMEOUTS_MS)
    count = draw.rows(0, 1, 1, 1, 2, 3)
    body: Body = {"TopicNames": [name(draw) for _ in count], "TimeoutMs": timeout_ms}
    if version >= 6:
        body = {"Topics": [_deleted(draw) for _ in count], "TimeoutMs": timeout_ms}
    return Step("DeleteTopics", version, body, settled=is_there(*LABELS))


def _deleted(draw: Draw) -> Body:
    wanted = draw.one(["name", "name", "name", "id", "id", "id", "both", "neither", "absent"])
    if wanted == "absent":
        return {"Name": None, "TopicId": ABSENT_ID}
    label = draw.one(LABELS)
    found_name = name(draw) if wanted == "name" else named(label) if wanted == "both" else None
    return {"Name": found_name, "TopicId": topic_id(label) if wanted in ("id", "both") else ZERO_ID}


def create_partitions(draw: Draw) -> Step:
    rows = []
    for _ in draw.rows(0, 1, 1, 1, 2):
        chosen = None
        if draw.happens(0.35):
            chosen = [{"BrokerIds": brokers(draw)} for _ in draw.rows(0, 1, 1, 2)]
        rows.append({"Name": name(draw), "Count": draw.one([1, 2, 2, 3, 4, 5, 0, -1]), "Assignments": chosen})
    body = {"Topics": rows, "TimeoutMs": draw.one(TIMEOUTS_MS), "ValidateOnly": draw.happens(0.15)}
    return Step("CreatePartitions", draw.random.randint(0, 3), body, settled=is_there(*LABELS))


def delete_records(draw: Draw) -> Step:
    topics = [
        {
            "Name": each,
            "Partitions": [{"PartitionIndex": p, "Offset": draw.one([-1, 0, 1, -2])} for p in partitions(draw)],
        }
        for each in names(draw)
        if each not in TOPICS  # other histories need their records
    ]
    return Step("DeleteRecords", draw.random.randint(0, 2), {"TimeoutMs": 5_000, "Topics": topics})


def elect(draw: Draw) -> Step:
    rows: list[Body] | None = [{"Topic": each, "Partitions": partitions(draw)} for each in names(draw)]
    body = {"ElectionType": draw.one([0, 0, 1, 1, 2, -1]), "TopicPartitions": rows, "TimeoutMs": draw.one(TIMEOUTS_MS)}
    return Step("ElectLeaders", draw.random.randint(0, 2), body)


def reassign(draw: Draw) -> Step:
    topics = [
        {
            "Name": each,
            "Partitions": [
                {"PartitionIndex": p, "Replicas": brokers(draw) if draw.happens(0.8) else None}
                for p in partitions(draw)
            ],
        }
        for each in names(draw)
    ]
    body = {"TimeoutMs": 30_000, "AllowReplicationFactorChange": draw.happens(0.7), "Topics": topics}
    return Step("AlterPartitionReassignments", draw.random.randint(0, 1), body)


def list_reassignments(draw: Draw) -> Step:
    rows = [{"Name": each, "PartitionIndexes": partitions(draw)} for each in names(draw)]
    return Step("ListPartitionReassignments", 0, {"TimeoutMs": 30_000, "Topics": rows if draw.happens(0.7) else None})


def move(draw: Draw) -> Step:
    """Move replicas to folders that the broker does not have."""
    rows = [
        {"Path": path, "Topics": [{"Name": each, "Partitions": partitions(draw)} for each in names(draw)]}
        for path in draw.one([["/no/such/folder"], ["/no/such/folder", "/nor/this"], ["relative"], [""], []])
    ]
    return Step("AlterReplicaLogDirs", draw.random.randint(1, 2), {"Dirs": rows})


# ---- descriptions


def partitions(draw: Draw) -> list[int]:
    return draw.random.sample([0, 1, 2, 5, -1], draw.one([0, 1, 1, 2, 3]))


def names(draw: Draw) -> list[Any]:
    """Return distinct names of topics."""
    chosen: list[Any] = []
    for _ in draw.rows(0, 1, 1, 1, 2, 3):
        each = draw.one(TOPICS) if draw.happens(0.15) else name(draw)
        if each not in chosen:
            chosen.append(each)
    return chosen


def metadata(draw: Draw) -> Step:
    """Request metadata without the creation of topics, of which only versions from 4 on have a choice."""
    version = draw.random.randint(0, 13)
    body: Body = {"AllowAutoTopicCreation": False}
    body |= {"IncludeTopicAuthorizedOperations": version >= 8 and draw.happens(0.3)}
    body |= {"IncludeClusterAuthorizedOperations": version in range(8, 11) and draw.happens(0.3)}
    if version < 4:
        rows: list[Body] | None = [{"Name": draw.one([*TOPICS, "b a d", ""])} for _ in draw.rows(1, 1, 2)]
        if draw.happens(0.3):
            rows = None if version else []
        return Step("Metadata", version, body | {"Topics": rows})
    rows = [{"Name": each} for each in names(draw)] if draw.happens(0.8) else None
    if version >= 10 and draw.happens(0.4):
        ids = [
            topic_id(draw.one(LABELS)) if draw.happens(0.8) else draw.one([ABSENT_ID, ZERO_ID]) for _ in draw.rows(1, 2)
        ]
        rows = [{"Name": None, "TopicId": each} for each in ids]
        if draw.happens(0.2):
            rows += [{"Name": each} for each in names(draw)]
    return Step("Metadata", version, body | {"Topics": rows})


def describe_partitions(draw: Draw) -> Step:
    """Describe the partitions of named topics; those of all topics depend on other histories."""
    cursor = {"TopicName": name(draw), "PartitionIndex": draw.one([0, 0, 1, 2, 9, -1])} if draw.happens(0.4) else None
    rows = [{"Name": each} for each in (names(draw) or [name(draw)])]
    body = {"Topics": rows, "ResponsePartitionLimit": draw.one([1, 2, 3, 2000, 2000, 0, -1]), "Cursor": cursor}
    return Step("DescribeTopicPartitions", 0, body)


def log_dirs(draw: Draw) -> Step:
    rows = [{"Topic": each, "Partitions": partitions(draw)} for each in names(draw)]
    body = {"Topics": rows if draw.happens(0.7) else None}
    return Step("DescribeLogDirs", draw.random.randint(1, 5), body)


def list_offsets(draw: Draw) -> Step:
    version = draw.random.randint(1, 11)
    topics = [
        {
            "Name": each,
            "Partitions": [
                {
                    "PartitionIndex": p,
                    "Timestamp": draw.one([-1, -1, -2, -3, -4, -5, -6, -7, 0, 2**62]),
                    "CurrentLeaderEpoch": draw.one([-1, -1, -1, 0, 1, -2]),
                }
                for p in partitions(draw)
            ],
        }
        for each in names(draw)
    ]
    body: Body = {"ReplicaId": draw.one([-1, -1, -1, -2, 99]), "IsolationLevel": draw.one([0, 1]), "TimeoutMs": 5_000}
    return Step("ListOffsets", version, body | {"Topics": topics})


def epoch_ends(draw: Draw) -> Step:
    topics = [
        {
            "Topic": each,
            "Partitions": [
                {
                    "Partition": p,
                    "CurrentLeaderEpoch": draw.one([-1, -1, 0, 1, -2]),
                    "LeaderEpoch": draw.one([0, 0, 1, -1]),
                }
                for p in partitions(draw)
            ],
        }
        for each in names(draw)
    ]
    body = {"ReplicaId": draw.one([-1, -2]), "Topics": topics}
    return Step("OffsetForLeaderEpoch", draw.random.randint(2, 4), body)


def describe_producers(draw: Draw) -> Step:
    rows = [{"Name": each, "PartitionIndexes": partitions(draw)} for each in names(draw)]
    return Step("DescribeProducers", 0, {"Topics": rows})


# ---- cluster


def describe_cluster(draw: Draw) -> Step:
    version = draw.random.randint(0, 2)
    body: Body = {"IncludeClusterAuthorizedOperations": draw.happens(0.5)}
    if version >= 1:
        body["EndpointType"] = draw.one([1, 1, 2, 0, 3])
    if version >= 2:
        body["IncludeFencedBrokers"] = draw.happens(0.5)
    return Step("DescribeCluster", version, body)


def update_features(draw: Draw) -> Step:
    """Validate changes of features; one that is applied would remain for other tests."""
    version = draw.random.randint(1, 2)
    rows = [
        {
            "Feature": draw.one(
                ["metadata.version", "transaction.version", "group.version", "share.version", "no.such", ""]
            ),
            "MaxVersionLevel": draw.one([0, 1, 2, 3, -1, 7, 29, 30, 99]),
            "UpgradeType": draw.one([1, 1, 2, 3, 0, 9]),
        }
        for _ in draw.rows(0, 1, 1, 2)
    ]
    return Step("UpdateFeatures", version, {"FeatureUpdates": rows, "ValidateOnly": True, "timeoutMs": 30_000})


def api_versions(draw: Draw) -> Step:
    body: Body = {
        "ClientSoftwareName": draw.one(["kit", "", "-", "a b"]),
        "ClientSoftwareVersion": draw.one(["1.0", "", "v!"]),
    }
    return Step("ApiVersions", draw.random.randint(0, 4), body)


def find_coordinator(draw: Draw) -> Step:
    version, kind = draw.random.randint(0, 6), draw.one([0, 0, 1, 1, 2, 3, -1])
    keys: list[Any] = [named("0"), named("tx-a"), "", "x:y:z", f"g:{ABSENT_ID}:0"]
    if version == 0:
        return Step("FindCoordinator", 0, {"Key": draw.one(keys)})
    body: Body = {"KeyType": kind}
    body |= (
        {"Key": draw.one(keys)} if version < 4 else {"CoordinatorKeys": [draw.one(keys) for _ in draw.rows(0, 1, 2)]}
    )
    return Step("FindCoordinator", version, body)


def list_transactions(draw: Draw) -> Step:
    version = draw.random.randint(0, 2)
    states = ["Empty", "Ongoing", "CompleteCommit", "CompleteAbort", "bogus", "", "ongoing"]
    body: Body = {"StateFilters": [draw.one(states) for _ in draw.rows(0, 0, 1, 2)]}
    body["ProducerIdFilters"] = [draw.one([999_999, -1, _producer("tx-a")]) for _ in draw.rows(0, 0, 0, 1, 2)]
    if version >= 1:
        body["DurationFilter"] = draw.one([-1, -1, 2**40, 3_600_000, -2])
    if version >= 2:
        body["TransactionalIdPattern"] = draw.one([None, None, "", ".*tx-a", "h.*", "(", "[a", ".*-b$"])
    return Step("ListTransactions", version, body)


def _producer(label: str) -> Reference:
    def value(known: Known) -> Any:
        return known.values.get(("producer", known.name(label)), (-1, -1))[0]

    return Reference(f"producer id of {label}", value)


def describe_transactions(draw: Draw) -> Step:
    ids = [draw.one([named("tx-a"), named("tx-b"), "", named("none")]) for _ in draw.rows(0, 1, 2)]
    return Step("DescribeTransactions", 0, {"TransactionalIds": ids})
