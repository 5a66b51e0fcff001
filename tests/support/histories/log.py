"""Random requests for the log of a topic that each replay creates, with and without transactions."""

from tests.conformance.batches import CONTROL, LOG_APPEND_TIME, TRANSACTIONAL, Record, batch
from tests.support.histories import configs
from tests.support.histories.administration import is_there
from tests.support.histories.configs import DELETE, SET
from tests.support.histories.draw import Draw
from tests.support.histories.steps import ABSENT, ABSENT_ID, Body, Known, Reference, Step, named
from tests.support.histories.transactions import LABELS, NO_PRODUCER, begin_all, completed, producer

TOPIC = named("t")
TOPIC_ID = Reference("id of t", lambda known: known.topic_ids.get(known.name("t"), ABSENT_ID))
PARTITIONS = (0, 1)
CONFIGS: tuple[dict[str, str], ...] = (
    {}, {}, {"message.timestamp.type": "LogAppendTime"}, {"cleanup.policy": "compact"}, {"max.message.bytes": "200"},
    {"compression.type": "uncompressed"}, {"message.timestamp.before.max.ms": "1000"},
)  # fmt: skip
APPLIED_S = 0.3  # a broker applies configs after its response
TIME_MS = 1_700_000_000_000
WRONG: tuple[Body, ...] = (
    {"count": 0}, {"count": 9}, {"last_offset_delta": 7}, {"last_offset_delta": -1}, {"base_offset": 5}, {"crc": 1},
    {"leader_epoch": 7}, {"magic": 3}, {"length": 48}, {"max_time_ms": -1},
    {"attributes": CONTROL}, {"attributes": LOG_APPEND_TIME}, {"sequence": -2}, {"epoch": -2},
)  # fmt: skip


def begin(draw: Draw) -> list[Step]:
    """Return steps that create the topic."""
    return [create(draw), Step("Metadata", 12, {"Topics": [{"Name": TOPIC}]}), *begin_all(draw)]


def create(draw: Draw) -> Step:
    chosen = draw.one(CONFIGS) | {"retention.ms": "-1"}  # the records are from 2023
    rows = [{"Name": name, "Value": value} for name, value in chosen.items()]
    row = {"Name": TOPIC, "NumPartitions": len(PARTITIONS), "ReplicationFactor": 1, "Configs": rows}
    return Step("CreateTopics", 7, {"Topics": [row], "timeoutMs": 10_000}, settled=is_there("t"))


def delete(draw: Draw) -> Step:
    """Delete the topic, also while transactions have records in it."""
    return Step("DeleteTopics", 5, {"TopicNames": [TOPIC], "TimeoutMs": 10_000}, settled=is_there("t"))


def configure(draw: Draw) -> Step:
    """Set or delete the configs that the topic may begin with."""
    chosen = draw.one([one for one in CONFIGS if one])
    change = SET if draw.happens(0.7) else DELETE
    rows = [{"Name": name, "ConfigOperation": change, "Value": value} for name, value in chosen.items()]
    resource = {"ResourceType": configs.TOPIC, "ResourceName": TOPIC, "Configs": rows}
    return Step("IncrementalAlterConfigs", 1, {"Resources": [resource]}, settles_s=APPLIED_S)


def _topic(draw: Draw) -> Body:
    """Return the name and the id of the topic, rarely of no topic."""
    return {"Name": TOPIC, "TopicId": TOPIC_ID} if draw.happens(0.97) else {"Name": ABSENT, "TopicId": ABSENT_ID}


def _partitions(draw: Draw) -> list[int]:
    return draw.random.sample([*PARTITIONS, 7], draw.one([1, 2])) if draw.happens(0.1) else [draw.one(PARTITIONS)]


def begin_idempotence(draw: Draw) -> Step:
    body = {"TransactionalId": None, "TransactionTimeoutMs": 60_000, "ProducerId": -1, "ProducerEpoch": -1}
    return Step("InitProducerId", draw.random.randint(0, 5), body)


def produce(draw: Draw) -> Step:
    """Produce batches of a transactional producer, of an idempotent one, which has no label, or of none."""
    label, has_id = draw.one([*LABELS, None]), draw.happens(0.85)
    rows: list[Body] = [
        {"Index": each, "Records": _batch(draw, label, each, has_id=has_id)} for each in _partitions(draw)
    ]
    if draw.happens(0.03):
        rows[0]["Records"] = draw.one([b"", _twice(rows[0]["Records"])])  # Kafka does not respond to null
    body: Body = {"TransactionalId": named(label) if label and has_id else None}
    body |= {
        "Acks": draw.one([*[-1, -1, 1] * 9, 2]),
        "TimeoutMs": 5_000,
        "TopicData": [_topic(draw) | {"PartitionData": rows}],
    }
    return Step("Produce", draw.random.randint(3, 13), body)


def _twice(one: Reference) -> Reference:
    return Reference(f"two of {one}", lambda known: one.value(known) * 2)


def _batch(draw: Draw, label: str | None, partition: int, *, has_id: bool) -> Reference:
    """Return one batch, mostly with the next sequence number, and sometimes with wrong fields."""
    records = [
        Record(draw.one([b"v", None, b"x" * 200]), draw.one([None, b"k"]), (), draw.one([0, 0, 3]))
        for _ in draw.rows(1, 1, 2, 3)
    ]
    change = draw.one([*[0] * 12, 1, -1, -2])
    is_transactional = has_id and label is not None and draw.happens(0.97)
    fields: Body = {"codec": draw.one([*["none"] * 4, "gzip", "snappy", "lz4", "zstd"])}
    fields |= {"attributes": TRANSACTIONAL if is_transactional else 0}
    if draw.happens(0.12):
        fields |= draw.one([*WRONG, {"offset_deltas": [2 * each for each in range(len(records))]}])

    def value(known: Known) -> bytes:
        found = known.values.get(("producer", label and known.name(label)), NO_PRODUCER) if has_id else NO_PRODUCER
        number, epoch = found
        sequence = known.values.get(("sequence", number, epoch, partition), 0) + change if number >= 0 else -1
        given: Body = {"time_ms": TIME_MS, "producer_id": number, "epoch": epoch, "sequence": sequence}
        return batch(*records, **(given | fields))

    return Reference(f"batch of {label if has_id else 'no producer'} {change:+} {records} {fields}", value)


def fetch(draw: Draw) -> Step:
    version = draw.random.randint(4, 17)
    offsets, sizes = [0, 0, 1, 2, 3, 5, 8, -1, 1000], [0, 1, 200, 1 << 20, 1 << 20]
    rows = [
        {"Partition": each, "FetchOffset": draw.one(offsets), "PartitionMaxBytes": draw.one(sizes),
         "CurrentLeaderEpoch": draw.one([-1, -1, 0, 1])}
        for each in _partitions(draw)
    ]  # fmt: skip
    topic = _topic(draw)
    body: Body = {"ReplicaId": -1, "MaxWaitMs": 0, "MinBytes": draw.one([0, 1]), "MaxBytes": draw.one([1 << 20, 300])}
    body |= {"IsolationLevel": draw.one([0, 1]), "SessionEpoch": -1}
    body |= {"Topics": [{"Topic": topic["Name"], "TopicId": topic["TopicId"], "Partitions": rows}]}
    return Step("Fetch", version, body)


def list_offsets(draw: Draw) -> Step:
    times_ms = [-1, -1, -2, -3, -4, -5, -7, 0, TIME_MS, TIME_MS + 3, TIME_MS + 4, 2**62]
    rows = [
        {"PartitionIndex": each, "Timestamp": draw.one(times_ms), "CurrentLeaderEpoch": draw.one([-1, -1, 0, 1])}
        for each in _partitions(draw)
    ]
    topics = [{"Name": _topic(draw)["Name"], "Partitions": rows}]
    body = {"ReplicaId": -1, "IsolationLevel": draw.one([0, 1]), "TimeoutMs": 5_000, "Topics": topics}
    return Step("ListOffsets", draw.random.randint(1, 10), body)


def delete_records(draw: Draw) -> Step:
    rows = [{"PartitionIndex": each, "Offset": draw.one([-1, 0, 1, 2, 3, 1000, -2])} for each in _partitions(draw)]
    topics = [{"Name": _topic(draw)["Name"], "Partitions": rows}]
    return Step("DeleteRecords", draw.random.randint(0, 2), {"TimeoutMs": 5_000, "Topics": topics})


def describe_producers(draw: Draw) -> Step:
    return Step("DescribeProducers", 0, {"Topics": [{"Name": TOPIC, "PartitionIndexes": _partitions(draw)}]})


def epoch_ends(draw: Draw) -> Step:
    rows = [
        {"Partition": each, "CurrentLeaderEpoch": draw.one([-1, -1, 0, 1]), "LeaderEpoch": draw.one([0, 0, 1, -1])}
        for each in _partitions(draw)
    ]
    body = {"ReplicaId": -1, "Topics": [{"Topic": _topic(draw)["Name"], "Partitions": rows}]}
    return Step("OffsetForLeaderEpoch", draw.random.randint(2, 4), body)


def add_partitions(draw: Draw) -> Step:
    version, found = draw.random.randint(0, 5), producer(draw)
    topics = [{"Name": _topic(draw)["Name"], "Partitions": _partitions(draw)}]
    body: Body = {f"V3AndBelow{name}": value for name, value in {**found, "Topics": topics}.items()}
    if version >= 4:
        body = {"Transactions": [{**found, "VerifyOnly": draw.happens(0.2), "Topics": topics}]}
    return Step("AddPartitionsToTxn", version, body, settled=completed(found))
