"""The client's end of the protocol: a Protocol that has outgoing, incoming, session and inbox.

Frames and the time go in, frames and settlements come out. A waiter is known by an interface only (waiter.py). Not
here: sockets, clock and threads (link/), and how a caller waits (threaded/, aio/).
"""
