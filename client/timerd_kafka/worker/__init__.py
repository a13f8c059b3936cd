"""The process of one broker: its sockets, its loop, and the commands of its supervisor."""
