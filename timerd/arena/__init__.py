"""The arena as shared memory: planned, formatted, checked, opened, copied, and its pages asked for in advance.

Not here: what the records mean (timerd_shm/declare/records.py), where they lie (declare/layout.py), and who writes them
(purgatory/).
"""
