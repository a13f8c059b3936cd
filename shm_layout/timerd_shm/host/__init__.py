"""Facts of this host: the files of an instance, its processes, and quantities as people write them.

Not here: anything about the bytes of the arena.
"""
