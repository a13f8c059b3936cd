"""Groups of workers: their outcomes, and named calls that one worker runs though all ask for them, also by a schedule.

Not here: the faces' threads and tasks that run handlers (threaded/member.py, aio/member.py).
"""
