"""Clients: their sessions, the messages in which they describe themselves, and how the daemon learns of their end.

Not here: what a client's commands do (purgatory/), and when a turn looks after clients (conductor/).
"""
