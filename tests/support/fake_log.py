"""FakeBroker with logs: Metadata with topic ids, and ListOffsets and Fetch over the batches of the test."""

from typing import Any
from uuid import UUID

from kbroker.protocol.records import iter_batches, iter_records
from tests.support.fake_broker import Body, FakeBroker

FETCH, LIST_OFFSETS, METADATA = 1, 2, 3
LATEST, EARLIEST = -1, -2
UNKNOWN_TOPIC, OUT_OF_RANGE, UNKNOWN_TOPIC_ID = 3, 1, 100


class FakeTime:
    """Clock that advances only when a client sleeps or the test advances it."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def advance(self, seconds: float) -> None:
        self.now += seconds


class FakeLogBroker(FakeBroker):
    """Broker with ``logs``: batches of each partition; ``begins``: log start offsets above 0; ``ids``: topic ids."""

    def __init__(self) -> None:
        super().__init__()
        self.logs: dict[tuple[str, int], list[bytes]] = {}
        self.begins: dict[tuple[str, int], int] = {}
        self.ids: dict[str, UUID] = {"t": UUID(int=1)}
        self.aborted: list[Body] = []
        self.partitions = {"t": 1}
        self.handlers[METADATA] = self.metadata_with_ids
        self.handlers[LIST_OFFSETS] = self.list_offsets
        self.handlers[FETCH] = self.fetch

    def end(self, topic: str, partition: int) -> int:
        data = self.logs.get((topic, partition), [])
        return max([b.last_offset + 1 for one in data for b in iter_batches(one)], default=self.begin(topic, partition))

    def begin(self, topic: str, partition: int) -> int:
        return self.begins.get((topic, partition), 0)

    def metadata_with_ids(self, version: int, body: Body) -> Body:
        response = self.metadata(version, body)
        for topic in response["Topics"]:
            if topic["ErrorCode"] == 0 and version >= 10:
                topic["TopicId"] = self.ids[topic["Name"]]
        return response

    def list_offsets(self, version: int, body: Body) -> Body:
        def one(topic: str, partition: int, timestamp: int) -> Body:
            if partition >= self.partitions.get(topic, 0):
                return {"PartitionIndex": partition, "ErrorCode": UNKNOWN_TOPIC}
            if timestamp >= 0:
                records = [r for one in self.logs.get((topic, partition), []) for r in iter_records(one)]
                offset = next((record.offset for record in records if record.timestamp_ms >= timestamp), -1)
            else:
                offset = self.end(topic, partition) if timestamp == LATEST else self.begin(topic, partition)
            return {"PartitionIndex": partition, "ErrorCode": 0, "Offset": offset, "Timestamp": -1}

        return {
            "Topics": [
                {
                    "Name": t["Name"],
                    "Partitions": [one(t["Name"], p["PartitionIndex"], p["Timestamp"]) for p in t["Partitions"]],
                }
                for t in body["Topics"]
            ]
        }

    def fetch(self, version: int, body: Body) -> Body:
        (topic,) = body["Topics"]
        (asked,) = topic["Partitions"]
        name = topic["Topic"]
        named: dict[str, Any] = {"Topic": name}
        error = 0
        if version >= 13:
            named = {"TopicId": topic["TopicId"]}
            name = next((n for n, i in self.ids.items() if i == topic["TopicId"]), "")
            error = 0 if name else UNKNOWN_TOPIC_ID
        return {"Responses": [{**named, "Partitions": [self._response(name, asked, error)]}]}

    def _response(self, name: str, asked: Body, error: int) -> Body:
        offset, partition = asked["FetchOffset"], asked["Partition"]
        records = b""
        if not error and not self.begin(name, partition) <= offset <= self.end(name, partition):
            error = OUT_OF_RANGE
        elif not error:
            for batch in self.logs.get((name, partition), []):
                after = [b.last_offset for b in iter_batches(batch)][-1] >= offset if batch[16] == 2 else True
                if after and (not records or len(records) + len(batch) <= asked["PartitionMaxBytes"]):
                    records += batch
        return {
            "PartitionIndex": partition,
            "ErrorCode": error,
            "HighWatermark": self.end(name, partition) if name else -1,
            "LastStableOffset": -1,
            "AbortedTransactions": self.aborted,
            "Records": records,
        }
