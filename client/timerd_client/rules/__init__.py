"""The purgatory's rules, written a second time in plain Python. None of the daemon's code is used.

The audit of a journal computes outcomes by these rules, and the tests compare the compiled core with them.
"""
