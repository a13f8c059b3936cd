"""A link to a daemon, and the objects of callers: operations, batches.

link.py holds the parts: connection.py, sender.py, waiters.py; base.py is their common base. questions.py,
withdrawals.py and flush.py do more with them. flows.py has the conversations of both faces, each written once as a
generator of steps. Not here: how a caller waits for a step (threaded/, aio/).
"""
