"""Entry point of ``format("kbroker")``: Spark imports all top-level modules ``pyspark_*`` and takes DefaultSource."""

from kbroker.spark.datasource.source import KbrokerDataSource as DefaultSource

__all__ = ["DefaultSource"]
