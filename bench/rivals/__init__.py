"""Rivals of timerd: other designs, other libraries, and the floor below each."""
