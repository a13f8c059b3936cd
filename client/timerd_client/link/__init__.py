"""A protocol with its sockets, a clock, a lock and the mapped arena; and what callers hold: operations, batches.

flows.py has the conversations of both faces, each written once as a generator that yields what it waits for. Not here:
how a caller waits for that (threaded/, aio/).
"""
