"""What a client says to its daemon, and when: a Protocol that has outgoing, incoming, session and inbox.

Frames and the time go in, frames and settlements come out; whoever waits is known by an interface (waiter.py). Not
here: a socket, a clock, a thread; who carries the frames (link/), and how a caller waits (threaded/, aio/).
"""
