"""A load test that is planned, played and shown on one page: the command `python -m timerd_spark run`.

Not here: the computation of reports (reports/), and reading a journal (source/).
"""
