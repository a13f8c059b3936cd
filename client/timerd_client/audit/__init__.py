"""Computes the outcomes of a journal again, and lists every disagreement. It uses none of the daemon's code.

Not here: reading the files of a journal (timerd_shm.read).
"""
