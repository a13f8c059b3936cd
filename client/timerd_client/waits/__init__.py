"""How callers wait: gates, greenlets, pauses, and requests whose end ends the waits.

Not here: promises, for which callers wait (link/promise.py), and waits of a link's own thread or loop (threaded/,
aio/).
"""
