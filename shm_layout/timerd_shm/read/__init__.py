"""Reading: the arena while the daemon writes it, lists in it, and the files of a journal.

Not here: what the bytes mean (declare/), and whether they are sound (check/).
"""
