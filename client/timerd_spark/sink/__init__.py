"""format("timerd") as a sink: its options, the writers that Spark calls, and the sender, which adds each row once.

Not here: the data source itself (format.py), and clients for the user's own code in a task (tasks/).
"""
