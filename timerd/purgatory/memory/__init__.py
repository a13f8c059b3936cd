"""Records as bytes: the arena, free records, lists by offset, blobs, hashes, short runs of bytes."""
