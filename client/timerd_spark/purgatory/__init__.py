"""The purgatory on Spark's state: more operations than a host holds, on an engine that spans hosts."""
