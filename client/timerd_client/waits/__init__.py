"""How callers wait: gates, conditions, greenlets, the slices of a wait, and pauses while the daemon is lost.

Not here: promises, for which callers wait (link/promise.py); requests whose end ends waits (scope.py); waits of a
link's own thread or loop (threaded/, aio/).
"""
