"""format("timerd") as a source: its options, readers, schema, segments, decoding, and the export to Parquet.

Not here: the data source itself (format.py), and what is computed from the rows (reports/).
"""
