"""The face for threads: calls block, and a thread of the client receives, and sends under load."""
