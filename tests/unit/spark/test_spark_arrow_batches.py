"""Arrow batches of the source: columns that are the same in each row, and what a worker does not load for them."""

import subprocess
import sys

from kbroker.protocol.records import build_batch
from kbroker.spark.datasource.arrow_batches import BatchBuilder

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
END = 1 << 62


def test_topic_and_partition_are_the_same_in_each_row() -> None:
    """Names beyond ASCII too; a batch after a larger one has no more rows than records."""
    builder = BatchBuilder(("topic", "value", "partition"), "größe", 7)
    for count in (3, 5, 1):
        builder.gathered.append(build_batch([(None, b"v")] * count), 0, 0, END)
        rows = builder.take().to_pylist()
        assert rows == [{"topic": "größe", "value": b"v", "partition": 7}] * count


def test_pandas_is_not_loaded() -> None:
    """It would be searched for garbage after each task, and takes longer to load than a small query to run."""
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
