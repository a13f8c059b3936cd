"""Clients: their sessions, the messages in which they describe themselves, and the signs of their end.

Not here: what a client's commands do (purgatory/), and when a turn looks after clients (conductor/).
"""
