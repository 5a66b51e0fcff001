"""Tables of request-log rows that tests write in one step."""

from __future__ import annotations

from pyspark.sql import DataFrame

from kbroker.common import request_log
from kbroker.spark.tables import log_schema
from kbroker.spark.tables.delta_table import DEFAULT_BUCKETS, REQUEST_LOG, Table, TableInfo
from kbroker.spark.tables.table import summary, write_rows
from kbroker.spark.tables.table_layout import Written
from kbroker.spark.tables.table_place import TableName


def write_table(
    rows: DataFrame, table: TableName, *, buckets: int = DEFAULT_BUCKETS, transaction: tuple[str, int] | None = None
) -> Written:
    """Add rows with the columns of the request log to a table, which is created if it does not exist.

    Args: `buckets`: number of buckets of a new table. `transaction`: a name and a number; a number
    that does not exceed the last one committed under this name writes nothing.
    Raises: TableError for a table of another kind.
    """
    found = Table(table)
    columns = log_schema.spark_schema().jsonValue()
    info = found.open(TableInfo(REQUEST_LOG, buckets, request_log.VERSION, columns))
    if transaction is not None and transaction[1] <= found.committed(transaction[0]):
        return summary([])
    files = write_rows(rows, found.place, info, "rows")
    found.commit(files, transaction)
    return summary(files)
