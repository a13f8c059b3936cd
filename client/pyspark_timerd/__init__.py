"""By this module's name Spark finds format("timerd") by itself, in the driver and in the workers."""

from timerd_spark.format import TimerdDataSource as DefaultSource

__all__ = ["DefaultSource"]
