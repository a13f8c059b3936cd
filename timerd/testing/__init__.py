"""For tests of programs that use timerd; docs/testing.md says how. What nobody asks for is not imported.

plugin     the fixtures of pytest
real/      a daemon of its own for a session of tests, with an arena of its own for each test
manual/    a daemon and its clients in this process, on a clock that a test moves
"""
