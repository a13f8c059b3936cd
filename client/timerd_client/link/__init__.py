"""A protocol with its sockets, a clock, a lock and the mapped arena; and what callers hold: operations, batches.

Not here: how a caller waits (threaded/, aio/).
"""
