"""What finds a record: a key by its bytes, an id, an operation by its number, the watchers that a watermark reaches."""
