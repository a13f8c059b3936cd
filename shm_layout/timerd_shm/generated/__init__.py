"""Written by `make generate` from declare/: the C header, the Cython declarations, and LAYOUT.md for people.

Not here: anything written by hand.
"""
