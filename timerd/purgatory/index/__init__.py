"""What finds a record: a key by its bytes, an id, a purgatory, an operation by its number, a watermark's watchers."""
