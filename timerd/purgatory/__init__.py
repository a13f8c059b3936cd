"""The compiled core: the purgatory in the arena. One C unit: its rooms are the folders here, its face is core.pyx.

Nothing here is imported by Python: the .pxd files are compiled into timerd.core, and `__init__.pxd` states the rule and
the levels. This file makes the folder a package, which Cython and installed wheels then see alike.
"""
