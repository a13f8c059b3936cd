"""The process of one broker: its sockets, its loop, and what its supervisor may ask of it."""
