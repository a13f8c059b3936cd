"""How a link reaches its daemon: `Sockets`, and their two implementations, by name.

    sockets         the interface
    zmq_sockets     "zeromq": sockets of libzmq, with a lifeline (lifeline.py) beside them
    unix_sockets    "unix": packets over one Unix socket, which is also the lifeline

Not here: the meaning of frames (protocol/); which thread receives and sends, and when (link/, threaded/, aio/).
"""
