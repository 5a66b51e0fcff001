"""Spark driver in its own process, to be killed: copies a topic into Parquet files in batches of fifty records.

    python -m tests.spark.copying_driver BOOTSTRAP TOPIC FOLDER

Prints `jvm PID` when the session has started, and runs until its end.
"""

import sys
from pathlib import Path

from kbroker.spark.setup.connector import source_options
from kbroker.spark.setup.session import build_session


def main() -> None:
    bootstrap, topic, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    spark = build_session("driver to be killed", master="local[2]", connector=True)
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    print(f"jvm {gateway.proc.pid}", flush=True)
    options = {**source_options(bootstrap), "startingOffsets": "earliest", "maxOffsetsPerTrigger": "50"}
    query = (
        spark.readStream.format("kafka")
        .options(**options, subscribe=topic)
        .load()
        .selectExpr("partition", "offset", "cast(value as string) value")
        .writeStream.format("parquet")
        .option("path", str(folder / "table"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
