"""Arrow batches of the Spark source: constant columns, and the modules that a worker loads."""

import subprocess
import sys

from kbroker.protocol.records import build_batch
from kbroker.spark.datasource.arrow_batches import BatchBuilder

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
