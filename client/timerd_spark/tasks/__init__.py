"""Inside a task: a client of the host's daemon, rows that wait for events, and deliveries with one timeout.

Not here: rows that Spark itself writes with format("timerd") (sink/).
"""
