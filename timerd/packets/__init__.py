"""Packets of NAME.unix on the daemon's side: the transport of clients without ZeroMQ (client/PROTOCOL.md).

    connection   one connection: packets that come in, packets that wait to be sent, a frame in parts
    server       a listening socket with its connections

Nothing here knows the meaning of a frame, or its client.
"""
