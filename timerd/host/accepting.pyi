"""Accepts connections without a socket object of Python for each, which would take longer than the system calls."""

LEFT: int = ...  # instead of a descriptor: the peer has closed the connection, and has sent nothing

def accept(listening: int) -> int:
    """Accept a connection that waits. Returns its descriptor, which does not block, or LEFT.

    Raises BlockingIOError if none waits, and OSError if no file can be opened.
    """

def credentials_of(descriptor: int) -> tuple[int, int]:
    """(pid, uid) of the process that has connected. The pid is 0 if its pid namespace is not visible here."""

def pidfd_of(descriptor: int) -> int:
    """A pidfd of the process that has connected (Linux 6.5). The caller closes it. Raises OSError."""

def enlarge_send_buffer(descriptor: int, size: int) -> None:
    """Have the kernel keep `size` bytes for a reader, as it counts them."""
