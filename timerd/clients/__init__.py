"""Who the clients are: their sessions, what they say of themselves, and how the daemon learns that one has ended."""
