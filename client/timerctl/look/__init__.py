"""Commands that only look: statistics, clients, operations, keys, errors, and whether the arena is sound.

They map the arena read-only and need no daemon, so they work when the daemon is dead.

Not here: commands that change something (act/).
"""
