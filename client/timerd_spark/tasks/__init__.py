"""Inside a task: a client of the host, waiting for events, deliveries with a timeout over everything.

Not here: rows that Spark itself writes with format("timerd") (sink/).
"""
