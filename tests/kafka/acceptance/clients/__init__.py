"""The processes that talk to the broker: three clients, raw sockets, and senders of damaged frames."""
