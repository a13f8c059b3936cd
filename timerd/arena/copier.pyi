"""Copies an arena as it was between two turns, while later turns change it."""

from _typeshed import ReadableBuffer

class Copier:
    """Copies `memory` into the file `fd`. First pass the copier to Core.begin_copy: as a buffer, the copier is the log.

    The log has room for `images_max` lines of 64 bytes. One thread calls `step` or `run`, and then `release`. Raises
    OSError when there is no memory.
    """

    def __init__(self, memory: ReadableBuffer, fd: int, images_max: int) -> None: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    @property
    def logged(self) -> int:
        """How many lines the core has logged."""
    def step(self, size: int = 1 << 18) -> bool:
        """Copy `size` bytes more, and write the images that were logged meanwhile; True while something is left.

        Lines of zero are left out: the file has a hole there. Runs without the GIL. Raises OSError when the file
        cannot be written, and CopyOverrunError when the log was full. The file is of no use then.
        """
    def run(self) -> bool:
        """All steps, without the GIL; False if `stop` was called before the end. Raises what `step` raises."""
    def stop(self) -> None:
        """Let `run` return soon. Any thread may call it until `release`."""
    def release(self) -> None:
        """Free the log, without the GIL, and let go of the memory. Raises BufferError while a core has the log."""

class CopyOverrunError(Exception):
    """The core has changed more lines than the log has room for."""
