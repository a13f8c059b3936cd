"""Groups of workers: their outcomes, and named calls. All workers may ask for a call, and one worker runs it.

Not here: the threads and tasks that run handlers (threaded/member.py, aio/member.py).
"""
