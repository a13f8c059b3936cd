"""The compiled core: the purgatory in the arena. One C unit: its rooms are the folders here, its face is core.pyx.

The .pxd files are compiled into timerd.core. `__init__.pxd` states the rule and the levels. Two files are Python,
because they raise errors: refusals.py, and start/header.py, which checks an arena's header. No socket, no clock.
"""
