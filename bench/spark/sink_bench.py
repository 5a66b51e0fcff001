"""Records per CPU second of the Spark sink's own work: Arrow batches into a broker, natively and one by one.

    python bench/spark/sink_bench.py [--rows 500000]

Without Spark: the batches of 10,000 rows are those that a Spark task passes on. CPU is that of this process; the broker
is another process. "one by one" is the previous method of the sink, with a Python object per record.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from kbroker.client.admin import Admin, NewTopic
from kbroker.client.cluster import Cluster
from kbroker.client.producer import Producer
from kbroker.spark.datasource.arrow_rows import rows_of
from tests.support.broker import BrokerProcess

BATCH_ROWS, PARTITIONS = 10_000, 3


def batches(rows: int, value_bytes: int) -> Iterator[pa.RecordBatch]:
    for first in range(0, rows, BATCH_ROWS):
        keys = pa.array([b"key-%07d" % n for n in range(first, first + BATCH_ROWS)], pa.binary())
        values = pa.array([os.urandom(value_bytes)] * BATCH_ROWS, pa.binary())
        yield pa.record_batch({"key": keys, "value": values})


def natively(producer: Producer, batch: pa.RecordBatch) -> None:
    producer.send_rows("t", rows_of(batch))


def one_by_one(producer: Producer, batch: pa.RecordBatch) -> None:
    for key, value in zip(*(batch[name].to_pylist() for name in ("key", "value")), strict=True):
        producer.send("t", value, key)


def measure(bootstrap: str, send: Callable[[Producer, Any], None], made: list[pa.RecordBatch]) -> float:
    """Return the rows per CPU second."""
    with Cluster(bootstrap) as cluster, Producer(cluster, batch_size_bytes=512 * 1024, idempotent=True) as producer:
        producer.send("t", b"", b"")
        producer.flush()
        used = time.process_time()
        for batch in made:
            send(producer, batch)
        producer.flush()
        return int(sum(batch.num_rows for batch in made)) / (time.process_time() - used)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=500_000)
    rows = parser.parse_args().rows
    with tempfile.TemporaryDirectory(prefix="kbroker-bench-") as folder:
        broker = BrokerProcess(Path(folder) / "data")
        broker.start()
        try:
            with Cluster(broker.bootstrap) as cluster:
                Admin(cluster).create_topics([NewTopic("t", PARTITIONS)])
            for value_bytes, scale in ((100, 1), (1000, 5)):
                made = list(batches(rows // scale, value_bytes))
                found = {
                    send.__name__: max(measure(broker.bootstrap, send, made) for _ in range(3))
                    for send in (natively, one_by_one)
                }
                shown = ", ".join(f"{name} {rate:,.0f}" for name, rate in found.items())
                print(f"{value_bytes} B: records per CPU second: {shown}", flush=True)
        finally:
            broker.discard()


if __name__ == "__main__":
    main()
