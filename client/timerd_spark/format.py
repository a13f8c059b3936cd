"""format("timerd"): a journal to read, registrations and events to write. SPARK.md has the options.

Spark finds the format by the name of the package `pyspark_timerd`. This module imports source/ and sink/, which do not
import each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader

from timerd_spark.sink.options import WriteOptions
from timerd_spark.sink.writers import BatchSink, StreamSink, refuse_overwrite
from timerd_spark.source.options import ReadOptions
from timerd_spark.source.readers import JournalSource, JournalStream, columns_of
from timerd_spark.source.schema import ddl
from timerd_spark.source.segments import check_header, hosts_of

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter, DataSourceWriter
    from pyspark.sql.types import StructType


class TimerdDataSource(DataSource):
    """format("timerd"): a reader reads a journal, a writer writes registrations or events."""

    @classmethod
    def name(cls) -> str:
        return "timerd"

    def schema(self) -> str:
        """The columns of the view, or those that were asked for. Raises the errors of options and journal."""
        options = ReadOptions.of(self.options)
        for directory in hosts_of(options.path).values():
            check_header(directory)
        return ddl(options.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = ReadOptions.of(self.options)
        return JournalSource(options, columns_of(schema, options.view))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = ReadOptions.of(self.options)
        return JournalStream(options, columns_of(schema, options.view))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        refuse_overwrite(overwrite)
        return BatchSink(WriteOptions.of(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        return StreamSink(WriteOptions.of(self.options), schema)
