"""The compiled core: the purgatory in the arena. One C unit: its rooms are the folders here, its face is core.pyx.

The .pxd files are compiled into timerd.core, and `__init__.pxd` states the rule and the levels. Two files are Python,
for what is said in words: refusals.py, and what a start asks of an arena (start/header.py). No socket, no clock.
"""
