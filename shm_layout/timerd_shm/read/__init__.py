"""Reading the arena while the daemon writes it, walking over its lists, and reading the files of a journal.

Not here: what the bytes mean (declare/), and whether they are sound (check/).
"""
