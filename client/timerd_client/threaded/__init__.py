"""The face for threads: calls block, and a thread of the client does what nobody waits for."""
