"""The arena as shared memory: planned, formatted, checked, opened, copied, and its pages reserved in advance.

Not here: the meaning of records (timerd_shm/declare/records.py), their places (declare/layout.py), and the code that
writes them (purgatory/).
"""
