"""The request log's columns as Arrow and Spark types, and the shape of its JSON.

Built from `kbroker.common.request_log`, the one place that names them. pyarrow and pyspark are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kbroker.common import request_log
from kbroker.common.request_log import COLUMNS, LIST, TIMESTAMP_US, Column

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql.types import DataType, StructType

arrow_schema = request_log.arrow_schema  # schema of the flat record
TRANSACTION_KEY = 1  # keyType of a FindCoordinator for a transaction coordinator


def names() -> list[str]:
    """Return the names of the columns of a record, in order."""
    return [column.name for column in COLUMNS]


def is_milliseconds(column: Column) -> bool:
    """Return whether JSON gives this column's microseconds as decimal milliseconds."""
    return column.name.endswith("_us") and column.json.endswith("Ms")


def spark_schema() -> StructType:
    """Return the flat record as Spark's schema; every column may be null."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(arrow_schema())


def json_schema(corrupt: str) -> StructType:
    """Return the schema with which `from_json` parses a record: nested as in KIP-673.

    Times are strings or decimals there. Args: `corrupt`: name of the field for a text that is not such a record.
    """
    from pyspark.sql.types import IntegerType, StringType, StructField, StructType

    tree = _tree(COLUMNS)
    tree[request_log.VERSION_KEY] = IntegerType()
    tree["request"].update(_ids_of_kafka())
    schema = _nested(tree)
    return StructType([*schema.fields, StructField(corrupt, StringType())])


def _ids_of_kafka() -> dict[str, DataType]:
    """Return the fields of a transactional id in Kafka's lines besides ``transactionalId``, the only one of kbroker."""
    from pyspark.sql.types import ArrayType, IntegerType, StringType, StructField, StructType

    transaction = StructType([StructField("transactionalId", StringType())])
    return {
        "v3AndBelowTransactionalId": StringType(),
        "transactions": ArrayType(transaction),
        "keyType": IntegerType(),
        "key": StringType(),
        "coordinatorKeys": ArrayType(StringType()),
    }


def transactional_id(request: SparkColumn) -> SparkColumn:
    """Return the transactional id in the ``request`` of a line from kbroker or Kafka; the first of several ids."""
    from pyspark.sql import functions as F

    first = F.lit(0)
    key = F.coalesce(F.get(request["coordinatorKeys"], first), request["key"])
    return F.coalesce(
        request["transactionalId"],
        request["v3AndBelowTransactionalId"],
        F.get(request["transactions"], first)["transactionalId"],
        F.when(request["keyType"] == TRANSACTION_KEY, key),
    )


def _tree(columns: tuple[Column, ...]) -> dict[str, Any]:
    """Return the types of columns in nested dicts, by the parts of their names in JSON."""
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import ArrayType, DoubleType, StringType

    tree: dict[str, Any] = {}
    for column in columns:
        *outer, leaf = column.json.split(".")
        inside = tree
        for part in outer:
            inside = inside.setdefault(part, {})
        if column.type == LIST:
            inside[leaf] = ArrayType(_nested(_tree(column.fields)))
        elif column.type == TIMESTAMP_US:
            inside[leaf] = StringType()
        else:
            inside[leaf] = DoubleType() if is_milliseconds(column) else from_arrow_type(request_log.arrow_type(column))
    return tree


def _nested(tree: dict[str, Any]) -> StructType:
    from pyspark.sql.types import StructField, StructType

    return StructType(
        [StructField(name, _nested(kind) if isinstance(kind, dict) else kind) for name, kind in tree.items()]
    )
