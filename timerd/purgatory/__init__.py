"""The compiled core: the purgatory in the arena. One C unit: its rooms are the folders here. Python calls core.pyx.

The .pxd files are compiled into timerd.core. `__init__.pxd` states the rule and the levels. Two files that the core
uses are Python, because they raise errors: refusals.py, and start/header.py, which checks an arena's header. twins.py
is a step of the build. The core has no socket and no clock.
"""
