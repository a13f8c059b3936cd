"""DataFrames computed from DataFrames: reports, rollups, what-if, and the audit.

Not here: reading rows into a DataFrame (source/), and drawing results (pipeline/plots.py).
"""
