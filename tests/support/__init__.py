"""Helpers that several files of tests share. A helper that only one test file uses stands in it, or beside it.

fakes/     stand in for a part of the system: networks, a daemon, sockets
kafka/     raw requests to a Kafka broker, and members of its groups
oracle/    expected results: the model of the core, checks of journals and arenas
real/      real processes: daemons, the threaded and the asyncio client, timerctl; and the sources of this project
rig/       drives the core: commands in, frames out; random programs, damage, crashes
spark/     journals for the tests on Spark
stubs/     types of packages that have none
suite/     the suite itself: its tiers, the promises that tests keep, and suites of users
web/       web servers and their users
fuzz.py    coverage-guided fuzzing
prose.py   the comments, docstrings, messages and pages of this project, for the tests that read them
run.py     runs a program of the tests
"""
