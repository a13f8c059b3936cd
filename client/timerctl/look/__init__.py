"""Commands that only look: statistics, clients, operations, calls, keys, errors, and whether the arena is sound.

They map the arena read-only and need no daemon, so they work when the daemon is dead. Only `check` asks a daemon that
runs, for a copy of its arena.

Not here: commands that change something (act/).
"""
