"""How callers wait, whatever they wait for: gates, greenlets, the requests in whose name they wait, pauses.

Not here: what they wait for (link/promise.py), and how a link's own threads and loops wait (threaded/, aio/).
"""
