"""``format("kbroker")``: the data source that Spark finds through the module `pyspark_kbroker`."""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructField, StructType

from kbroker.spark.datasource.column_types import TYPES
from kbroker.spark.datasource.error_messages import SourceError, plainly
from kbroker.spark.datasource.options import COLUMNS, WriteOptions, read_columns, read_options, write_options
from kbroker.spark.datasource.reader import KbrokerReader
from kbroker.spark.datasource.stream import KbrokerStreamReader, RefusedStreamReader
from kbroker.spark.datasource.writer import KbrokerStreamWriter, KbrokerWriter, check_schema
from kbroker.spark.errors import PipelineError
from kbroker.spark.setup.worker_memory import freeze_modules


class KbrokerDataSource(DataSource):
    """Topics of any Kafka cluster as tables and streams, by kbroker's client; docs/spark-source.md lists the options.

    All options are checked before the first request.
    """

    @classmethod
    def name(cls) -> str:
        """Return the argument of ``format``."""
        return "kbroker"

    @plainly
    def schema(self) -> StructType:
        """Return the columns of the official connector, or those of the option ``columns``."""
        freeze_modules()
        columns = read_columns(self.options)  # the kind of the query is not known yet
        return StructType([StructField(name, TYPES[name]) for name in columns])

    @plainly
    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a batch reader."""
        return KbrokerReader(read_options(self.options, streaming=False), _columns(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return a streaming reader; for wrong options, one that raises the error."""
        try:
            return self._stream_reader(schema)
        except SourceError as error:
            return RefusedStreamReader(error)

    @plainly
    def _stream_reader(self, schema: StructType) -> DataSourceStreamReader:
        return KbrokerStreamReader(read_options(self.options, streaming=True), _columns(schema))

    @plainly
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return a batch writer."""
        return KbrokerWriter(self._write_options(schema, overwrite))

    @plainly
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return a streaming writer."""
        return KbrokerStreamWriter(self._write_options(schema, overwrite))

    def _write_options(self, schema: StructType, overwrite: bool) -> WriteOptions:
        if overwrite:
            raise PipelineError("a topic cannot be overwritten: write with mode('append'), or outputMode('append')")
        options = write_options(self.options)
        check_schema(schema, options)
        return options


def _columns(schema: StructType) -> list[str]:
    """Check a user's schema, which may have any of the columns in any order, and return its names."""
    for given in schema.fields:
        expected = TYPES.get(given.name)
        if expected is None:
            raise PipelineError(f"the schema names {given.name!r}; this source has {', '.join(COLUMNS)}")
        if StructField(given.name, expected) != given:
            raise PipelineError(
                f"the schema has {given.simpleString()}; it must be {given.name}:{expected.simpleString()}, nullable"
            )
    return [given.name for given in schema.fields]
