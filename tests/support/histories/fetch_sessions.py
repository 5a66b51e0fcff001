"""Random requests of fetch sessions (KIP-227), by names and by ids, while records and the topic come and go."""

from tests.conformance.batches import Record, batch
from tests.support.histories.draw import Draw
from tests.support.histories.log import TIME_MS, TOPIC, TOPIC_ID
from tests.support.histories.steps import ABSENT, ABSENT_ID, Body, Reference, Step

PARTITIONS = range(4)
LABELS = ("one", "two")
CLOSED = (0, -1)  # id and epoch of a session that was never begun: a fetch without a session


def begin(draw: Draw) -> list[Step]:
    """Return steps that create the topic."""
    return [create(draw), *(produce(draw) for _ in range(3))]


def create(draw: Draw) -> Step:
    configs = [{"Name": "retention.ms", "Value": "-1"}]  # the records are from 2023
    row = {"Name": TOPIC, "NumPartitions": len(PARTITIONS), "ReplicationFactor": 1, "Configs": configs}
    rows = [{"PartitionIndex": index, "Timestamp": -1} for index in PARTITIONS]
    ready = Step("ListOffsets", 2, {"ReplicaId": -1, "Topics": [{"Name": TOPIC, "Partitions": rows}]})
    return Step("CreateTopics", 7, {"Topics": [row], "timeoutMs": 10_000}, settled=ready)


def delete(draw: Draw) -> Step:
    gone = Step("Metadata", 9, {"Topics": [{"Name": TOPIC}], "AllowAutoTopicCreation": False})
    return Step("DeleteTopics", 5, {"TopicNames": [TOPIC], "TimeoutMs": 10_000}, settled=gone)


def produce(draw: Draw) -> Step:
    records = [Record(draw.one([b"v", b"x" * 200])) for _ in draw.rows(1, 1, 2)]
    row = {"Index": draw.one(PARTITIONS), "Records": batch(*records, time_ms=TIME_MS)}
    topic = {"Name": TOPIC, "PartitionData": [row]}
    return Step("Produce", 9, {"TransactionalId": None, "Acks": -1, "TimeoutMs": 5_000, "TopicData": [topic]})


def delete_records(draw: Draw) -> Step:
    row = {"PartitionIndex": draw.one(PARTITIONS), "Offset": draw.one([-1, 1, 2])}
    return Step("DeleteRecords", 2, {"TimeoutMs": 5_000, "Topics": [{"Name": TOPIC, "Partitions": [row]}]})


def fetch(draw: Draw) -> Step:
    """Fetch in a session, mostly with its next epoch; some requests begin a session or end it."""
    label, kind = draw.one(LABELS), draw.random.random()
    change = draw.one([*[0] * 15, 1, -1])

    def field(index: int) -> Reference:
        return Reference(
            f"{('id', 'epoch')[index]} of session {label} {change:+}",
            lambda known: known.values.get(("fetch-session", label), CLOSED)[index] + (change if index else 0),
        )

    session: Body = {"SessionId": field(0), "SessionEpoch": field(1)}
    if kind < 0.2:
        session = {"SessionId": 0, "SessionEpoch": 0}
    elif kind < 0.28:
        session = {"SessionId": draw.one([field(0), field(0), 7]), "SessionEpoch": draw.one([0, -1, 1])}
    begins = session["SessionEpoch"] in (0, -1)
    body: Body = {"ReplicaId": -1, "MaxWaitMs": 0, "MinBytes": 0, "MaxBytes": draw.one([1 << 20, 1 << 20, 300, 0])}
    body |= {**session, "IsolationLevel": draw.one([0, 0, 1]), "Topics": [], "ForgottenTopicsData": []}
    if begins or draw.happens(0.4):
        body["Topics"] = [{**_topic(draw), "Partitions": [_partition(draw, each) for each in _sample(draw)]}]
    if not begins and draw.happens(0.2):
        body["ForgottenTopicsData"] = [{**_topic(draw), "Partitions": _sample(draw)}]
    return Step("Fetch", draw.random.randint(7, 17) if draw.happens(0.2) else draw.one([12, 16]), body, label=label)


def _topic(draw: Draw) -> Body:
    return {"Topic": TOPIC, "TopicId": TOPIC_ID} if draw.happens(0.93) else {"Topic": ABSENT, "TopicId": ABSENT_ID}


def _sample(draw: Draw) -> list[int]:
    return draw.random.sample([*PARTITIONS, *([7] if draw.happens(0.05) else [])], draw.one([1, 1, 2, 4]))


def _partition(draw: Draw, index: int) -> Body:
    return {
        "Partition": index, "FetchOffset": draw.one([0, 0, 1, 2, 3, 4, 5, 9]), "LogStartOffset": -1,
        "PartitionMaxBytes": draw.one([0, 200, 1 << 20, 1 << 20]), "CurrentLeaderEpoch": draw.one([-1, -1, -1, 0, 1]),
    }  # fmt: skip
