"""The state of one broker: what it holds, and what its APIs read and change."""
