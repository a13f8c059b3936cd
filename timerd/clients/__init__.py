"""Who the clients are: their sessions, what they say of themselves, and how the daemon learns that one has ended.

Not here: what a client's commands do (purgatory/), and when a turn looks after clients (conductor/).
"""
