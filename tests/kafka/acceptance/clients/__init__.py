"""The processes that talk to the broker: unmodified clients, raw sockets, and senders of damaged frames."""
