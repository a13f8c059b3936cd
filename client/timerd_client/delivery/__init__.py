"""Deliveries as KIP-91 has them: one timeout over everything, from the accumulator to the last retry.

accumulator.py decides, without threads or I/O; courier.py drives it with threads and with deadlines that timerd holds.
Not here: deliveries of Spark's tasks (timerd_spark.tasks).
"""
