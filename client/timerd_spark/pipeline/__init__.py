"""A load test planned, played and told on one page: the command `python -m timerd_spark run`."""
