"""What this host says: where an instance's files are, which processes run, and quantities as people write them.

Not here: anything about the bytes of the arena.
"""
