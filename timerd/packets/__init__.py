"""Packets of NAME.unix on the daemon's side: the transport of clients without ZeroMQ (client/PROTOCOL.md).

    connection   one connection: its packets, what waits to be sent, a frame that comes in parts
    server       a listening socket with its connections

Nothing here knows what a frame means, or whose it is.
"""
