"""format("timerd"): a journal as a data source."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource

from .schema import VIEWS, ddl


class TimerdDataSource(DataSource):
    """`spark.read.format("timerd")`."""

    @classmethod
    def name(cls) -> str:
        return "timerd"

    def schema(self) -> str:
        return ddl(VIEWS[self.options.get("view", "terminal")])
