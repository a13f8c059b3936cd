"""Two calls of malloc: how it returns memory to the system."""

def return_large_blocks() -> None:
    """Have malloc map each block of a MiB or more by itself, from now on: it goes back to the system when it is freed.

    By default glibc raises this bound whenever such a block is freed, up to 32 MiB, and keeps blocks below it.
    """

def trim() -> None:
    """Give free memory back to the system, also in the middle of the heap. Does nothing without glibc."""
