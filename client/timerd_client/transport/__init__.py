"""How a link reaches its daemon: `Sockets`, and their two implementations, by name.

    sockets         the interface
    zmq_sockets     "zeromq": libzmq's, with a lifeline beside them
    unix_sockets    "unix": packets over one Unix socket, which is its own lifeline

Not here: the meaning of frames (protocol), and when which thread receives and sends (link and the faces).
"""
