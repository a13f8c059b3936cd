"""The journal on the command line: `timerctl journal tail` and `timerctl journal export`.

Not here: reading the files (timerd_shm.read), and what each row means (timerd_shm.declare.journal).
"""
