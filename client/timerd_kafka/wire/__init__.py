"""Connections, their frames, and the requests and answers in them. Nothing here knows a topic or a group."""
