"""How callers wait: gates, greenlets, pauses, and the requests whose end ends their waits.

Not here: promises, for which they wait (link/promise.py), and waits of a link's own thread or loop (threaded/, aio/).
"""
