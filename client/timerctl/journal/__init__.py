"""The journal on the command line: `timerctl journal tail`, `export` and `audit`.

Not here: reading the files (timerd_shm.read), and what each row means (timerd_shm.declare.journal).
"""
