"""The journal in files: its buffer in shared memory, the thread that writes it, segments, and holds on them.

Not here: which rows an event makes (purgatory/journal/), and how they are read (timerd_shm/read/).
"""
