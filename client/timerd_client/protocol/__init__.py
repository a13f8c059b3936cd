"""The client's side of the protocol: a Protocol that has outgoing, incoming, session and inbox.

Frames and the time go in, frames and settlements come out. The protocol knows waiters only by their interface
(waiter.py). Not here: sockets, clock and threads (link/), and how a caller waits (threaded/, aio/).
"""
