"""Topics of histories, with records for the share groups."""

import uuid

from tests.conformance import codec
from tests.support import wire
from tests.support.broker import wait_for
from tests.support.histories.steps import PARTITIONS, TOPICS

# Sizes of the batches of each partition, by topic and partition
BATCHES = {(TOPICS[0], 0): (3, 1, 5, 2), (TOPICS[0], 1): (10,), (TOPICS[1], 0): (1, 1, 1, 1)}
TIMESTAMP_MS = 1_700_000_000_000
CREATE_VERSION, METADATA_VERSION, FIND_VERSION = 5, 12, 3


def _asked(bootstrap: str, api: str, version: int, body: codec.Body) -> codec.Body:
    with wire.Connection(bootstrap, 20) as connection:
        return codec.response(api, version, connection.ask(codec.request(api, version, body)))[1]


def prepare(bootstrap: str) -> dict[str, uuid.UUID]:
    """Create and fill the topics, and wait for them and for the coordinators; return the ids of the topics by name."""
    kept = [{"Name": "retention.ms", "Value": "-1"}]  # the records are from 2023
    rows = [
        {"Name": name, "NumPartitions": count, "ReplicationFactor": 1, "Configs": kept}
        for name, count in PARTITIONS.items()
    ]
    _asked(bootstrap, "CreateTopics", CREATE_VERSION, {"Topics": rows, "timeoutMs": 10_000})
    for name, count in PARTITIONS.items():
        for partition in range(count):
            wait_for("the partition has a leader", lambda n=name, p=partition: wire.is_ready(bootstrap, n, p))  # type: ignore[misc]
    for (name, partition), sizes in BATCHES.items():
        if wire.end_offset(bootstrap, name, partition) == 0:
            for size in sizes:
                records = wire.batch([b"value"] * size, timestamp_ms=TIMESTAMP_MS)
                with wire.Connection(bootstrap) as connection:
                    connection.ask(wire.produce(name, partition, records))
    for kind in (0, 1):
        key = {"Key": "histories", "KeyType": kind}
        wait_for("a coordinator", lambda k=key: _asked(bootstrap, "FindCoordinator", FIND_VERSION, k)["ErrorCode"] == 0)  # type: ignore[misc]
    fetch, begin = {"GroupId": "histories"}, {"TransactionalId": "histories", "TransactionTimeoutMs": 60_000}
    wait_for("loaded groups", lambda: _asked(bootstrap, "OffsetFetch", 2, fetch)["ErrorCode"] == 0)
    wait_for("loaded transactions", lambda: _asked(bootstrap, "InitProducerId", 0, begin)["ErrorCode"] == 0)
    wanted = {"Topics": [{"Name": name} for name in TOPICS]}
    described = _asked(bootstrap, "Metadata", METADATA_VERSION, wanted)["Topics"]
    return {row["Name"]: row["TopicId"] for row in described}
