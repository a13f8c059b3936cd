"""Frames about frames: reports, rollups, what-if, and the audit."""
