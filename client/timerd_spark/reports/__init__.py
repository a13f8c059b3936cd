"""Frames about frames: reports, rollups, what-if, and the audit.

Not here: how the rows got into a frame (source/), and how results are drawn (pipeline/plots.py).
"""
