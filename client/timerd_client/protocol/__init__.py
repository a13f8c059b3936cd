"""What a client says to its daemon, and when. No socket, no clock, no thread: frames and the time go in and out.

Not here: who carries the frames (link/), and how a caller waits (threaded/, aio/).
"""
