"""The binding: Python's objects become C's arguments, and C's results become Python's objects. So core.pyx is thin.

arguments.pxd      arguments are checked, and refused by an exception of refusals.py; then a room is called
buffers.pxd        the memory of the arena, of the journal's buffer and of a frame: taken, checked, released
report_frames.pxd  reports as bytes
waits.pxd          which of the operations that a hello names are unknown

No other .pxd file knows Python. This room decides nothing about operations.
"""
