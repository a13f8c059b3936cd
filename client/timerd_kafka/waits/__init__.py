"""The waits of requests: for operations of timerd, and for nothing else."""
