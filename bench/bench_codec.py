"""Cost of encoding and decoding: pytest bench/bench_codec.py --benchmark-group-by=group"""

import uuid
from typing import Any

import pytest

from kbroker.protocol import codec
from kbroker.protocol.records import Record, build_batch, columns, iter_records

TOPIC_ID = uuid.UUID(int=0x1234567890ABCDEF1234567890ABCDEF)

API_VERSIONS_REQUEST = {"ClientSoftwareName": "apache-kafka", "ClientSoftwareVersion": "4.3.0"}
API_VERSIONS = {"ApiKeys": [{"ApiKey": k, "MinVersion": 0, "MaxVersion": 9} for k in range(60)]}
METADATA_REQUEST = {"Topics": [{"TopicId": TOPIC_ID, "Name": f"topic-{i:03d}"} for i in range(100)]}
METADATA = {
    "Brokers": [{"NodeId": 1, "Host": "localhost", "Port": 9092, "Rack": None}],
    "ClusterId": "cluster",
    "ControllerId": 1,
    "Topics": [
        {
            "ErrorCode": 0,
            "Name": f"topic-{i:03d}",
            "TopicId": TOPIC_ID,
            "IsInternal": False,
            "Partitions": [
                {
                    "ErrorCode": 0,
                    "PartitionIndex": p,
                    "LeaderId": 1,
                    "LeaderEpoch": 0,
                    "ReplicaNodes": [1],
                    "IsrNodes": [1],
                    "OfflineReplicas": [],
                }
                for p in range(3)
            ],
        }
        for i in range(100)
    ],
}
FETCH_REQUEST = {
    "MaxWaitMs": 500,
    "MinBytes": 1,
    "Topics": [{"TopicId": TOPIC_ID, "Partitions": [{"Partition": 0, "FetchOffset": 5, "PartitionMaxBytes": 1 << 20}]}],
}
FETCH = {
    "Responses": [
        {
            "TopicId": TOPIC_ID,
            "Partitions": [
                {
                    "PartitionIndex": 0,
                    "ErrorCode": 0,
                    "HighWatermark": 9,
                    "LastStableOffset": 9,
                    "AbortedTransactions": None,
                    "Records": bytes(65536),
                }
            ],
        }
    ]
}
CASES: list[tuple[str, str, int, int, dict[str, Any]]] = [
    ("ApiVersions request v4", "request", 18, 4, API_VERSIONS_REQUEST),
    ("ApiVersions response v4, 60 keys", "response", 18, 4, API_VERSIONS),
    ("Metadata request v12, 100 topics", "request", 3, 12, METADATA_REQUEST),
    ("Metadata response v12, 100 topics x 3", "response", 3, 12, METADATA),
    ("Fetch request v13, 1 partition", "request", 1, 13, FETCH_REQUEST),
    ("Fetch response v13, 64 KiB", "response", 1, 13, FETCH),
]
NAMES = [case[0] for case in CASES]


@pytest.mark.parametrize(("name", "side", "key", "version", "body"), CASES, ids=NAMES)
def bench_encode(benchmark: Any, name: str, side: str, key: int, version: int, body: Any) -> None:
    encode = codec.encode_request if side == "request" else codec.encode_response
    decode = codec.decode_request if side == "request" else codec.decode_response
    data = benchmark(encode, key, version, body)
    assert encode(key, version, decode(key, version, data)) == data


@pytest.mark.parametrize(("name", "side", "key", "version", "body"), CASES, ids=NAMES)
def bench_decode(benchmark: Any, name: str, side: str, key: int, version: int, body: Any) -> None:
    encode = codec.encode_request if side == "request" else codec.encode_response
    decode = codec.decode_request if side == "request" else codec.decode_response
    data = encode(key, version, body)
    assert encode(key, version, benchmark(decode, key, version, data)) == data


BATCH = build_batch([Record(b"key-%d" % i, b"v" * 100, 1000 + i) for i in range(1000)])


@pytest.mark.benchmark(group="read 1,000 records")
def bench_columns(benchmark: Any) -> None:
    assert len(benchmark(columns, BATCH).offsets) == 1000


@pytest.mark.benchmark(group="read 1,000 records")
def bench_rows(benchmark: Any) -> None:
    assert len(benchmark(lambda: list(iter_records(BATCH)))) == 1000


@pytest.mark.benchmark(group="build 1,000 records")
def bench_build(benchmark: Any) -> None:
    records = [(b"key-%d" % i, b"v" * 100) for i in range(1000)]
    assert len(benchmark(build_batch, records)) > 100_000
