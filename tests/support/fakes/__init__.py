"""Stand-ins for parts of the system: networks, a daemon, sockets."""
