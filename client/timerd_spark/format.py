"""format("timerd"): a journal to read, registrations and events to write. The pages: docs/howto/spark-*.md.

Spark finds the format by the name of the package `pyspark_timerd`. This module imports source/ and sink/, which do not
import each other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader

from timerd_shm.declare.errors import InvalidConfigError
from timerd_spark.options import known_options
from timerd_spark.sink.options import WriteOptions
from timerd_spark.sink.writers import BatchSink, StreamSink, refuse_overwrite
from timerd_spark.source.options import READ_OPTIONS, ReadOptions
from timerd_spark.source.readers import JournalSource, JournalStream, columns_of
from timerd_spark.source.schema import Column, spark_schema
from timerd_spark.source.segments import check_header, journals_of

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter, DataSourceWriter
    from pyspark.sql.types import StructType

PROVIDER = "provider"  # an option that Spark adds for a new table
OPTIONS = "timerd.options"  # in the metadata of a table's columns


class TimerdDataSource(DataSource):
    """format("timerd"): a reader reads a journal, a writer writes registrations or events."""

    @classmethod
    def name(cls) -> str:
        return "timerd"

    def schema(self) -> StructType:
        """The columns of the view, or the requested columns. Raises the errors of options and journal."""
        options = ReadOptions.of(self.options)
        for directory in journals_of(options.paths).values():
            check_header(directory)
        if PROVIDER not in self.options:
            return spark_schema(options.columns)
        return with_options(options.columns, self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = ReadOptions.of(self.options or options_in(schema))
        return JournalSource(options, columns_of(schema, options.view))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = ReadOptions.of(self.options or options_in(schema))
        return JournalStream(options, columns_of(schema, options.view))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        refuse_overwrite(overwrite)
        return BatchSink(WriteOptions.of(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        return StreamSink(WriteOptions.of(self.options), schema)


# tables ---------------------------------------------------------------------------------------------------------------


def with_options(columns: Sequence[Column], options: Mapping[str, str]) -> StructType:
    """The columns of a table, with the options in their metadata: Spark passes no options to the source of a table."""
    made = spark_schema(columns)
    for field in made.fields:
        field.metadata |= {OPTIONS: json.dumps(known_options(options, READ_OPTIONS))}
    return made


def options_in(schema: StructType) -> Mapping[str, str]:
    """The options with which a table was created."""
    found = next((field.metadata[OPTIONS] for field in schema.fields if OPTIONS in field.metadata), None)
    if found is None:
        raise InvalidConfigError(
            "there is no path: give one to load(), or create the table again without columns of its own: Spark passes "
            "no options to the source of a table that has such columns"
        )
    options: dict[str, str] = json.loads(found)
    return options
