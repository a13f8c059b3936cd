"""Spark finds format("timerd") by the name of this module, without registration, in the driver and in the workers."""

from timerd_spark.format import TimerdDataSource as DefaultSource

__all__ = ["DefaultSource"]
