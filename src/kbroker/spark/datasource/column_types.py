"""Spark's types of the columns, those of the official connector; every column is nullable."""

from __future__ import annotations

from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import DataType

from kbroker.spark.datasource import arrow_batches

TYPES: dict[str, DataType] = {name: from_arrow_type(kind) for name, kind in arrow_batches.TYPES.items()}
