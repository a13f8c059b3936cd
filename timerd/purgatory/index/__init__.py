"""Finding records: a key by its bytes, an id, a purgatory, an operation by its number, the watchers of a watermark."""
