"""The state of one broker, which its APIs read and change."""
