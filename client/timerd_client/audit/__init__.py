"""The outcomes of a journal computed again, and every disagreement listed. Nothing of the daemon's code is used.

Not here: reading the files of a journal (timerd_shm.read).
"""
