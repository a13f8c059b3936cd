"""format("timerd") as a source: its options, readers, schema, segments, decoding, and the export to Parquet.

    options.py    the options of load(), checked
    readers.py    Spark's interface: partitions, batches, streams
    segments.py   what each task reads: which journals are below the path, and spans of their records
    positions.py  positions in journals, as the offsets of a query have them
    progress.py   how far a query is behind its journals
    batches.py    spans as record batches: for readers and export
    decode.py     records of a segment as Arrow columns
    ids.py        the hashes of the ids that users give to operations
    events.py     the events view: rows of every kind in one table
    left_out.py   a row of the events view for rows that were left out
    schema.py     the columns, declared once
    frame.py      a journal as a DataFrame, from its own files or from Parquet
    export.py     a journal as Parquet

Not here: the data source itself (format.py), and computations on the rows (reports/).
"""
