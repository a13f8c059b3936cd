"""A load test that is planned, played and shown on one page: the command `python -m timerd_spark run`.

Not here: what the reports compute (reports/), and how a journal is read (source/).
"""
