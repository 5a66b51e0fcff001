"""Source without jars beside the official connector: records per CPU second of JVM and Python workers.

    python bench/spark/source_bench.py [--tls] [--jars DIR] [--runs N] [--warm-ups N] [--quick]
    python bench/spark/source_bench.py --sources kafka,kbroker,memory

Both read the same topics of one kbroker in one session alternately, so that other load of the machine affects both. The
query is count and sum(length(value)), whose result is checked. CPU is that of the JVM, its Python workers and ended
workers, without the broker's. With --tls both read through TLS, with their default settings. Without --jars the pinned
jars are those of `kbroker pipeline jars`. The source `memory` yields the same Arrow batches without a broker, as the
upper limit of a Python source.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.spark import memory_source
from bench.spark.ingest import cpu_seconds
from kbroker.client.admin import Admin, NewTopic
from kbroker.client.cluster import Cluster
from kbroker.client.producer import Producer
from kbroker.protocol.records import RecordBatchBuilder
from kbroker.spark.setup.session import build_session
from tests.support.broker import BrokerProcess
from tests.support.certificates import Certificates
from tests.support.ports import free_run

PARTITIONS = 4
BATCH_BYTES = 16_000  # Kafka's default batch.size of producers
RECORDS = {100: 2_000_000, 1000: 400_000}  # records by the bytes of their values


def fill(cluster: Cluster, topic: str, records: int, value_bytes: int) -> None:
    """Fill a topic with batches like those of a producer with default settings, equal except for their offsets."""
    Admin(cluster).create_topics([NewTopic(topic, PARTITIONS)])
    per_batch = max(1, BATCH_BYTES // (value_bytes + 20))
    builder = RecordBatchBuilder()
    now_ms = int(time.time() * 1000)
    for i in range(per_batch):
        builder.append(b"key-%05d" % i, os.urandom(value_bytes), now_ms + i)
    data, left = builder.build(), [records // PARTITIONS] * PARTITIONS
    producer = Producer(cluster)
    while any(left):
        for partition in range(PARTITIONS):
            count = min(left[partition], per_batch)
            if count == per_batch:
                send(cluster, topic, partition, data)
            else:
                for i in range(count):
                    producer.send(topic, bytes(value_bytes), b"key-%05d" % i, partition=partition)
            left[partition] -= count
    producer.flush()


def send(cluster: Cluster, topic: str, partition: int, data: bytes) -> None:
    """Produce a prepared batch."""
    body = {
        "TransactionalId": None,
        "Acks": 1,
        "TimeoutMs": 30_000,
        "TopicData": [{"Name": topic, "PartitionData": [{"Index": partition, "Records": data}]}],
    }
    response = cluster.request(0, body, node_id=cluster.leader(topic, partition), max_version=12)
    assert response["Responses"][0]["PartitionResponses"][0]["ErrorCode"] == 0


def read(spark: Any, source: str, options: Mapping[str, Any], topic: str) -> tuple[int, int]:
    frame = (
        spark.read.format(source)
        .options(**options)
        .option("subscribe", topic)
        .load()
        .selectExpr("count(*)", "sum(length(value))")
    )
    count, size = frame.first()
    return count, size


def secured(folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Return settings of a broker with a second listener in TLS, and options of both sources for this listener."""
    certificates = Certificates(folder)
    plain = free_run(2)
    tls = plain + 1
    settings = {
        "listeners": f"PLAINTEXT://127.0.0.1:{plain},SSL://127.0.0.1:{tls}",
        "ssl.keystore.location": str(certificates.server),
    }
    options = {
        "kafka.bootstrap.servers": f"127.0.0.1:{tls}",
        "kafka.security.protocol": "SSL",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": str(certificates.ca),
    }
    return settings, options


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jars", type=Path, help="folder with the official connector's jars")
    parser.add_argument("--runs", type=int, default=5, help="measured runs of each source and size")
    parser.add_argument("--warm-ups", type=int, default=2, help="runs before them, in which the JVM compiles")
    parser.add_argument("--quick", action="store_true", help="a tenth of the records")
    parser.add_argument("--sources", default="kafka,kbroker", help="which to run, of kafka, kbroker and memory")
    parser.add_argument("--tls", action="store_true", help="through TLS")
    parser.add_argument("--sizes", default="100,1000", help="bytes of a value: 100, 1000 or both")
    parser.add_argument("--conf", action="append", default=[], help="Spark setting as KEY=VALUE; repeatable")
    given = parser.parse_args()
    sources = given.sources.split(",")
    spark = build_session(
        "source bench",
        master="local[2]",
        connector="kafka" in sources and given.jars is None,
        more_jars=sorted(given.jars.glob("*.jar")) if given.jars else (),
        driver_memory="2g",
        settings=dict(one.split("=", 1) for one in given.conf),
    )
    memory_source.register(spark)
    jvm = int(spark._jvm.java.lang.ProcessHandle.current().pid())
    scale = 10 if given.quick else 1
    with tempfile.TemporaryDirectory(prefix="kbroker-bench-") as folder:
        settings, options = secured(Path(folder) / "certificates") if given.tls else ({}, {})
        broker = BrokerProcess(Path(folder) / "data", settings)
        broker.start()
        try:
            options = {"kafka.bootstrap.servers": broker.bootstrap, **options}
            for value_bytes in map(int, given.sizes.split(",")):
                records = RECORDS[value_bytes] // scale
                topic = f"values-of-{value_bytes}"
                with Cluster(broker.bootstrap) as cluster:
                    fill(cluster, topic, records, value_bytes)
                wanted = {"records": records, "partitions": PARTITIONS, "value_bytes": value_bytes}
                each = {source: wanted if source == "memory" else options for source in sources}
                measure(spark, jvm, each, topic, records, value_bytes, given.runs, given.warm_ups)
        finally:
            broker.discard()
            spark.stop()
    return 0


def measure(
    spark: Any,
    jvm: int,
    options: Mapping[str, Mapping[str, Any]],
    topic: str,
    records: int,
    value_bytes: int,
    runs: int,
    warm_ups: int,
) -> None:
    """Print one line per source of ``options``, and the factor of records per CPU second of this project's source."""
    sources = list(options)
    cpu: dict[str, list[float]] = {source: [] for source in sources}
    wall: dict[str, list[float]] = {source: [] for source in sources}
    for turn in range(warm_ups + runs):
        for source in sources if turn % 2 else sources[::-1]:
            cpu_before, begun = cpu_seconds(jvm), time.perf_counter()
            response = read(spark, source, options[source], topic)
            assert response == (records, records * value_bytes), (source, response)
            if turn >= warm_ups:
                wall[source].append(time.perf_counter() - begun)
                cpu[source].append((cpu_seconds(jvm) - cpu_before) / records * 1e6)
    for source in sources:
        print(
            f"{source:8} {records} x {value_bytes} B: wall median {statistics.median(wall[source]):.2f} s, "
            f"best {min(wall[source]):.2f} s; CPU per million median {statistics.median(cpu[source]):.2f} s, "
            f"best {min(cpu[source]):.2f} s",
            flush=True,
        )
    for ours in (source for source in sources if "kafka" in sources and source != "kafka"):
        ratios = [statistics.median(figures["kafka"]) / statistics.median(figures[ours]) for figures in (cpu, wall)]
        print(
            f"         {ours} / official: records per CPU second {ratios[0]:.2f}, per second {ratios[1]:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main())
