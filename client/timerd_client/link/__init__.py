"""A link to a daemon, and what callers hold: operations, batches.

link.py holds the parts: connection.py, sender.py, waiters.py; base.py is what they share. questions.py, withdrawals.py
and flush.py do more with them. flows.py has the conversations of both faces, each written once as a generator that
yields what it waits for. Not here: how a caller waits for that (threaded/, aio/).
"""
