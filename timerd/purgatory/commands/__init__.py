"""What clients send: frames, single commands, batches of usual ones, and prefetching what they will need."""
