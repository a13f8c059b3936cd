"""How a link reaches its daemon: `Sockets`, and two makes of them, by name.

    sockets         what a link needs of them
    zmq_sockets     "zeromq": libzmq's, with a lifeline beside them
    unix_sockets    "unix": packets over one Unix socket, which is its own lifeline

Not here: what the frames mean (protocol), who receives and sends when (link and the faces).
"""
