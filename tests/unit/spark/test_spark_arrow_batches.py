"""Arrow batches of the Spark source: constant columns, deleted markers, and the modules that a worker loads."""

import subprocess
import sys

from kbroker.client.cluster import Cluster
from kbroker.client.partition_reader import FetchSettings
from kbroker.protocol.records import build_batch
from kbroker.spark.datasource.arrow_batches import BatchBuilder
from kbroker.spark.datasource.planning import OffsetRange
from kbroker.spark.datasource.range_reader import RangeReader
from tests.support.control_batches import build_control_batch
from tests.support.fake_broker import Body
from tests.support.fake_log import FETCH, FakeLogBroker

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
END = 1 << 62


def test_topic_and_partition_are_the_same_in_each_row() -> None:
    """Topic and partition are constant columns; a batch after a larger batch has no extra rows."""
    builder = BatchBuilder(("topic", "value", "partition"), "größe", 7)
    for count in (3, 5, 1):
        builder.gathered.append(build_batch([(None, b"v")] * count), 0, 0, END)
        rows = builder.take().to_pylist()
        assert rows == [{"topic": "größe", "value": b"v", "partition": 7}] * count


def test_pandas_is_not_loaded() -> None:
    """Loading pandas takes longer than a small query and would enlarge the garbage collections of each task."""
    program = (
        "import io, sys\n"
        "import pyarrow as pa\n"
        "from kbroker.protocol.records import build_batch\n"
        "from kbroker.spark.datasource import range_reader, reader\n"
        "from kbroker.spark.datasource.arrow_batches import BatchBuilder\n"
        f"builder = BatchBuilder({COLUMNS!r}, 't', 0)\n"
        f"builder.gathered.append(build_batch([(b'k', b'v')]), 0, 0, {END})\n"
        "batch = builder.take()\n"
        "with pa.RecordBatchStreamWriter(io.BytesIO(), batch.schema) as writer:\n"
        "    writer.write_batch(batch)\n"
        "print(batch.num_rows, 'pandas' in sys.modules)"
    )
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert printed == "1 False\n"


def test_a_deleted_marker_costs_no_later_transaction() -> None:
    """Retention removes the marker of an aborted transaction during a read: the producer's next one is read."""

    def batch(offset: int) -> bytes:
        ids = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
        return build_batch([(None, b"v")], base_offset=offset, **ids)  # type: ignore[arg-type]

    def marker(offset: int, commit: bool) -> bytes:
        ids = {"producer_id": 1, "producer_epoch": 0, "coordinator_epoch": 0, "timestamp_ms": 0}
        return build_control_batch(commit=commit, base_offset=offset, **ids)

    wanted = OffsetRange("t", 0, 0, 4)
    settings = FetchSettings(max_partition_bytes=1, read_committed=True)
    with FakeLogBroker() as fake, Cluster(fake.bootstrap) as cluster:
        fake.logs["t", 0] = [batch(0), marker(1, commit=False), batch(2), marker(3, commit=True)]
        fetch = fake.fetch

        def fetch_and_delete(version: int, body: Body) -> Body:
            first = body["Topics"][0]["Partitions"][0]["FetchOffset"] == 0
            fake.aborted = [{"ProducerId": 1, "FirstOffset": 0}] if first else []
            found = fetch(version, body)
            fake.begins["t", 0] = 2
            return found

        fake.handlers[FETCH] = fetch_and_delete
        reader = RangeReader(cluster, wanted, ["offset"], settings, fail_on_data_loss=False)
        assert [offset for rows in reader for offset in rows["offset"].to_pylist()] == [2]
