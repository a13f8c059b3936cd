"""A link to a daemon, and the objects of callers: operations, batches.

link.py holds the parts: connection.py, sender.py, waiters.py; base.py has what the parts know of their link.
questions.py, withdrawals.py and flush.py use the parts. flows.py has the conversations of threaded and asyncio clients,
each written once as a generator of steps. Not here: how a caller waits for a step (threaded/, aio/).
"""
