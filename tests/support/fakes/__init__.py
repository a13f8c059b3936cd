"""Stand in for a part of the system: networks, a daemon, sockets."""
