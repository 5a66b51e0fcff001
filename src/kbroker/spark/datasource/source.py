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
    """Topics of any Kafka cluster as tables and streams, over our own client; docs/spark-source.md has the options.

    Every option is checked before the cluster is asked anything.
    """

    @classmethod
    def name(cls) -> str:
        """What is given to ``format``."""
        return "kbroker"

    @plainly
    def schema(self) -> StructType:
        """The official connector's columns, or those that the option ``columns`` names."""
        freeze_modules()
        columns = read_columns(self.options)  # Spark does not say yet which kind of query it is to be
        return StructType([StructField(name, TYPES[name]) for name in columns])

    @plainly
    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch reader."""
        return KbrokerReader(read_options(self.options, streaming=False), _columns(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A streaming reader; where the options are wrong, one that says so."""
        try:
            return self._stream_reader(schema)
        except SourceError as error:
            return RefusedStreamReader(error)

    @plainly
    def _stream_reader(self, schema: StructType) -> DataSourceStreamReader:
        return KbrokerStreamReader(read_options(self.options, streaming=True), _columns(schema))

    @plainly
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A batch writer."""
        return KbrokerWriter(self._write_options(schema, overwrite))

    @plainly
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """A streaming writer."""
        return KbrokerStreamWriter(self._write_options(schema, overwrite))

    def _write_options(self, schema: StructType, overwrite: bool) -> WriteOptions:
        if overwrite:
            raise PipelineError("a topic cannot be overwritten: write with mode('append'), or outputMode('append')")
        options = write_options(self.options)
        check_schema(schema, options)
        return options


def _columns(schema: StructType) -> list[str]:
    """Names of a schema, which the user may have given: any of ours, in any order, each with our type."""
    for given in schema.fields:
        expected = TYPES.get(given.name)
        if expected is None:
            raise PipelineError(f"the schema names {given.name!r}; this source has {', '.join(COLUMNS)}")
        if StructField(given.name, expected) != given:
            raise PipelineError(
                f"the schema has {given.simpleString()}; it must be {given.name}:{expected.simpleString()}, nullable"
            )
    return [given.name for given in schema.fields]
