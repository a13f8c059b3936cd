"""What a turn of the conductor does besides commands."""
