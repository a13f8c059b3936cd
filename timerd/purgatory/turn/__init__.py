"""What a turn does besides commands: its time and bound, expiry, acknowledgements, the sweep, retention."""
