"""How a request waits: for an operation of timerd, and for nothing else."""
