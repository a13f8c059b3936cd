"""format("timerd") as a source: schema, segments, decoding, batches of rows, and the export to Parquet."""
