"""Web servers and their users."""
