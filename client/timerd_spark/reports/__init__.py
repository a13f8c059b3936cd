"""DataFrames computed from DataFrames: reports, rollups, what-if, and the audit.

Not here: how rows come into a DataFrame (source/), and how results are drawn (pipeline/plots.py).
"""
