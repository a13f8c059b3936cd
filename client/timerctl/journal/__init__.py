"""The journal on the command line: `timerctl journal tail`, `export` and `audit`.

Not here: reading the files (timerd_shm.read), and the meaning of rows (timerd_shm.declare.journal).
"""
