"""The journal in files: the buffer in shared memory, the thread that writes files, segments, and consumers' holds.

Not here: which rows an event makes (purgatory/journal/), and how they are read (timerd_shm/read/).
"""
