"""format("timerd") as a sink: its options, the writers that Spark calls, and the sender that adds each row once.

Not here: the data source itself (format.py), and clients for code of the user's own in a task (tasks/).
"""
